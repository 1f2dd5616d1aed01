"""From logits to the next token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from varla.arguments import check_count, check_number


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0: always the most likely one.

    `top_k` keeps this many of the most likely tokens; then `top_p` keeps the fewest of them whose probabilities sum to
    it. None: keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0)
        check_count("top_k", self.top_k, none_means="all tokens")
        check_number("top_p", self.top_p, above=0, or_none=True)
        if self.top_p is not None and self.top_p > 1:
            raise ValueError(f"top_p must be at most 1, got {self.top_p!r}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """[V] float64 on the CPU, of logits [V]. On the CPU, so that a seed draws the same token on every device."""
        logits = logits.detach().cpu().double()
        if not bool(logits.isfinite().all()):
            raise ValueError("the model's logits are not finite: its weights or its state hold NaN or infinity")
        if self.temperature == 0:
            return torch.zeros_like(logits).index_fill(0, logits.argmax(), 1.0)
        logits = (logits - logits.max()) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[0]:
            likeliest = logits.topk(self.top_k).indices
            logits = torch.full_like(logits, -torch.inf).index_copy(0, likeliest, logits[likeliest])
        p = logits.softmax(0)
        if self.top_p is not None and self.top_p < 1:
            values, order = p.sort(descending=True, stable=True)
            before = values.cumsum(0) - values
            p = p.index_fill(0, order[before >= self.top_p], 0.0)
            p = p / p.sum()
        return p

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> int:
        """A token, drawn by logits [V]. Without a generator, PyTorch's own is used."""
        p = self.probabilities(logits)
        if self.temperature == 0:
            return int(p.argmax())
        return int(torch.multinomial(p, 1, generator=generator))
