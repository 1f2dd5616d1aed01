"""Recall after a long run of filler tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from varla.arguments import check_count
from varla.tasks.draws import distinct, uniform
from varla.tasks.recall import Recall, interleave
from varla.tasks.task import labels_at_end

DEFAULT_NOISE = 128


@dataclass(frozen=True, kw_only=True)
class NoisyRecall(Recall):
    """`k1 v1 ... kn vn f f f ... f SEP q1 ... qn`: T - 3n - 1 filler tokens, then each key once, shuffled.

    SEP = V - 1. The `fillers` tokens below it are the filler. Of the rest, the lower half are keys and the upper half
    values. Keys, values and filler cannot be confused, so only retention over T is hard. T = 3n+1 is the control
    without filler; the default has 128 filler tokens.
    """

    name: ClassVar[str] = "noisy-recall"
    length_rule: ClassVar[str] = "3n+1: n pairs, SEP and n queries, the rest is filler"

    fillers: int = 16

    @property
    def sep(self) -> int:
        """The token between filler and queries."""
        return self.vocab_size - 1

    @property
    def filler_tokens(self) -> range:
        """The filler's tokens."""
        return range(self.sep - self.fillers, self.sep)

    @property
    def key_tokens(self) -> range:
        """The lower half of the tokens below the filler."""
        return range((self.filler_tokens.start + 1) // 2)

    @property
    def value_tokens(self) -> range:
        """The upper half of the tokens below the filler."""
        return range(self.key_tokens.stop, self.filler_tokens.start)

    @property
    def noise(self) -> int:
        """Number of filler tokens in a sequence."""
        return self.seq_len - self._least_length()

    def _check(self) -> None:
        check_count("fillers", self.fillers)
        super()._check()

    def _least_vocab(self) -> int:
        return self.fillers + 3

    def _least_length(self) -> int:
        return 3 * self.n + 1

    def _default_length(self) -> int:
        return self._least_length() + DEFAULT_NOISE

    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = distinct(batch_size, self.n, self.key_tokens, generator)
        values = uniform(batch_size, self.n, self.value_tokens, generator)
        noise = uniform(batch_size, self.noise, self.filler_tokens, generator)
        asked = distinct(batch_size, self.n, range(self.n), generator)
        sep = keys.new_full((batch_size, 1), self.sep)
        inputs = torch.cat([interleave(keys, values), noise, sep, keys.gather(1, asked)], dim=1)
        return inputs, labels_at_end(inputs, values.gather(1, asked))

    def _describe(self) -> str:
        return (
            f"Recall after noise: {self.n} key-value pairs, {self.noise} filler tokens, the separator {self.sep}, then "
            f"each key once in random order, {self.seq_len} tokens in total. The output at each query must be the "
            f"value of that key. Keys are distinct tokens of 0..{self.key_tokens.stop - 1}, values are drawn with "
            f"replacement from {self.value_tokens.start}..{self.value_tokens.stop - 1}, filler from "
            f"{self.filler_tokens.start}..{self.filler_tokens.stop - 1}. "
            f"Naming one of the {self.n} values at random is right about once in {self.n} times."
        )

    def _is_filler(self, token: int) -> bool:
        return token in self.filler_tokens

    def _token_name(self, position: int, token: int) -> str:
        if token == self.sep:
            return "SEP"
        return f"f{token}" if self._is_filler(token) else super()._token_name(position, token)
