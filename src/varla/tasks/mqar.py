"""Multi-query associative recall as the paper ran it, and two variants with other ranges of tokens."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from varla.arguments import refuse_unknown
from varla.tasks.draws import distinct, uniform
from varla.tasks.recall import Recall, interleave
from varla.tasks.task import Task, labels_at_end


def _span(tokens: range) -> str:
    return f"{tokens.start}..{tokens.stop - 1}"


@dataclass(frozen=True, kw_only=True)
class MQAR(Recall):
    """`k1 v1 k2 v2 ... kn vn SEP q q q ...`, T >= 3n+1 tokens, SEP = vocab_size - 1.

    Queries are drawn with replacement, as in the paper's experiments (its text says that they are a shuffle of the
    n keys), and fill the T - 2n - 1 positions after SEP. The label at a query is the value of its key.
    """

    name: ClassVar[str] = "mqar"
    length_rule: ClassVar[str] = "3n+1: n pairs, SEP and n queries"

    @property
    def sep(self) -> int:
        """The token between pairs and queries."""
        return self.vocab_size - 1

    @property
    def key_tokens(self) -> range:
        """All tokens except SEP."""
        return range(self.sep)

    @property
    def value_tokens(self) -> range:
        """All tokens except SEP."""
        return range(self.sep)

    def _least_length(self) -> int:
        return 3 * self.n + 1

    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = distinct(batch_size, self.n, self.key_tokens, generator)
        values = uniform(batch_size, self.n, self.value_tokens, generator)
        asked = uniform(batch_size, self.seq_len - 2 * self.n - 1, range(self.n), generator)
        sep = keys.new_full((batch_size, 1), self.sep)
        inputs = torch.cat([interleave(keys, values), sep, keys.gather(1, asked)], dim=1)
        return inputs, labels_at_end(inputs, values.gather(1, asked))

    def _describe(self) -> str:
        return (
            f"Multi-query associative recall: {self.n} key-value pairs, the separator {self.sep}, then "
            f"{self.seq_len - 2 * self.n - 1} queries drawn with replacement from the keys, {self.seq_len} tokens in "
            f"total; the output at each query must be the value of that key. Keys are distinct and drawn from "
            f"{_span(self.key_tokens)}, values with replacement from {_span(self.value_tokens)}. "
            f"Naming one of the {self.n} values at random is right about once in {self.n} times."
        )

    def _token_name(self, position: int, token: int) -> str:
        return "SEP" if position == 2 * self.n else super()._token_name(position, token)


@dataclass(frozen=True, kw_only=True)
class DisjointMQAR(MQAR):
    """`mqar` with keys 0 .. V/2-1 and values V/2 .. V-2: a token alone tells a key from a value.

    If the number of tokens is odd, the keys get one more: 64 keys and 63 values at V = 128, which allows n = 64.
    """

    name: ClassVar[str] = "mqar-disjoint"

    @property
    def key_tokens(self) -> range:
        """The lower half of the tokens other than SEP."""
        return range(self.vocab_size // 2)

    @property
    def value_tokens(self) -> range:
        """The upper half of the tokens other than SEP."""
        return range(self.vocab_size // 2, self.sep)

    def _least_vocab(self) -> int:
        return 3


@dataclass(frozen=True, kw_only=True)
class OutOfDistributionMQAR(MQAR):
    """`mqar` with keys 0 .. V/2-1 (`keys="id"`, for training) or V/2 .. V-2 (`keys="ood"`, never keys in training).

    Values are always drawn from all tokens except SEP, so the held-out keys do occur in training, as values.
    """

    name: ClassVar[str] = "mqar-ood"
    keys: str = "id"

    @property
    def key_tokens(self) -> range:
        """The keys of training, or the held-out keys."""
        half = self.vocab_size // 2
        return range(half) if self.keys == "id" else range(half, self.sep)

    def evaluations(self) -> dict[str, Task]:
        """The task with the keys of training ("id") and with the held-out keys ("ood")."""
        return {keys: replace(self, keys=keys) for keys in ("id", "ood")}

    def _most_pairs(self) -> int:
        # Both evaluations must be possible, and the held-out half is the smaller one.
        half = self.vocab_size // 2
        return min(half, self.sep - half)

    def _check(self) -> None:
        refuse_unknown("value of keys", self.keys, ("id", "ood"))
        super()._check()

    def _describe(self) -> str:
        half = self.vocab_size // 2
        return (
            f"{super()._describe()} Training draws keys from 0..{half - 1} only; the evaluations are on those (id) and "
            f"on the keys {half}..{self.sep - 1} that were held out (ood)."
        )

    def _least_vocab(self) -> int:
        return 3
