"""Multi-query associative recall in the layout of Zoology (Arora et al. 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from varla.arguments import check_number
from varla.tasks.draws import distinct, weighted_distinct
from varla.tasks.recall import Recall, interleave
from varla.tasks.task import IGNORE


@dataclass(frozen=True, kw_only=True)
class ZoologyMQAR(Recall):
    """`k1 v1 ... kn vn`, then every key once, at an even distance from the end of the pairs, among zeros.

    The (T - 2n) / 2 even positions after the pairs are slots 1, 2, .... Slots are drawn without replacement, slot i in
    proportion to i^(power - 1), and the j-th drawn slot holds the key of pair j. A small power puts most queries soon
    after the pairs. Keys are tokens 1 .. V/2-1 and values V/2 .. V-1, both drawn without replacement.
    """

    name: ClassVar[str] = "mqar-zoology"
    length_rule: ClassVar[str] = "4n: n pairs, and n slots of two tokens"
    even_length: ClassVar[bool] = True

    vocab_size: int = 8192
    power: float = 0.01

    @property
    def key_tokens(self) -> range:
        """The lower half of the vocabulary, except the filler 0."""
        return range(1, self.vocab_size // 2)

    @property
    def value_tokens(self) -> range:
        """The upper half of the vocabulary."""
        return range(self.vocab_size // 2, self.vocab_size)

    @property
    def slots(self) -> int:
        """Number of positions that a query can take."""
        return self.seq_len // 2 - self.n

    def _check(self) -> None:
        check_number("power", self.power, above=0)
        super()._check()

    def _least_vocab(self) -> int:
        return 4

    def _least_length(self) -> int:
        return 4 * self.n

    def _draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = distinct(batch_size, self.n, self.key_tokens, generator)
        values = distinct(batch_size, self.n, self.value_tokens, generator)
        slot = torch.arange(1, self.slots + 1, dtype=torch.float64, device=generator.device)
        gaps = weighted_distinct(batch_size, self.n, (self.power - 1) * slot.log(), generator)
        places = 2 * self.n + 2 * gaps
        inputs = keys.new_zeros(batch_size, self.seq_len)
        inputs[:, : 2 * self.n] = interleave(keys, values)
        inputs.scatter_(1, places, keys)
        labels = torch.full_like(inputs, IGNORE).scatter_(1, places, values)
        return inputs, labels

    def _describe(self) -> str:
        return (
            f"Multi-query associative recall in the layout of Zoology: {self.n} key-value pairs, then each key once, "
            f"in one of {self.slots} slots at even distances from the pairs, with zeros elsewhere, {self.seq_len} "
            f"tokens in total; slot i is drawn in proportion to i^({self.power:g}-1). The output at each query must be "
            f"the value of that key. Keys are distinct tokens of 1..{self.vocab_size // 2 - 1}, values distinct "
            f"tokens of {self.vocab_size // 2}..{self.vocab_size - 1}. "
            f"Naming one of the {self.n} values at random is right once in {self.n} times."
        )

    def _is_filler(self, token: int) -> bool:
        return token == 0

    def _token_name(self, position: int, token: int) -> str:
        return "0" if self._is_filler(token) else super()._token_name(position, token)
