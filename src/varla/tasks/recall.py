"""The base of the associative recall tasks: key-value pairs in the first 2n positions, then queries for keys."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from varla.arguments import check_count
from varla.tasks.task import Task


def interleave(keys: Tensor, values: Tensor) -> Tensor:
    """Turn keys [B, n] and values [B, n] into k1 v1 k2 v2 ... kn vn, [B, 2n]."""
    return torch.stack([keys, values], dim=-1).flatten(1)


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """`n` pairs of a key and a value, and queries for some of the keys.

    The keys of a sequence are distinct, and all pairs come before all queries. So every query has exactly one answer,
    and the best possible accuracy is 1. The position tells whether a token is a key or a value, so a value that is
    also a key elsewhere is not ambiguous.
    """

    n: int = 8

    @property
    @abstractmethod
    def key_tokens(self) -> range:
        """Tokens that keys are drawn from."""

    @property
    @abstractmethod
    def value_tokens(self) -> range:
        """Tokens that values are drawn from: the possible answers."""

    @property
    def chance(self) -> float:
        """Accuracy of guessing uniformly among the value tokens."""
        return 1 / len(self.value_tokens)

    def _most_pairs(self) -> int:
        return len(self.key_tokens)

    def _check(self) -> None:
        check_count("n", self.n)
        super()._check()
        most = self._most_pairs()
        if self.n > most:
            raise ValueError(
                f"n must be at most {most} for {self.name} with vocab_size={self.vocab_size}, "
                f"since the keys of a sequence are distinct; got {self.n}"
            )

    def _token_name(self, position: int, token: int) -> str:
        if position < 2 * self.n and position % 2:
            return f"v{token}"
        return f"k{token}"

    def _answer_name(self, token: int) -> str:
        return f"v{token}"
