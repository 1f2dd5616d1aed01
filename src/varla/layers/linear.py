"""Linear attention (Katharopoulos et al. 2020) with ELU + 1."""

from typing import Any

from torch import Tensor

from varla.layers.base import Layer
from varla.layers.writes import Rule, Writes
from varla.ops import LinearAttentionState, linear_attention
from varla.ops.features import feature
from varla.ops.split import Packing


class LinearAttention(Layer):
    """Adds every value to the memory: S + v phi(k)^T."""

    name = "linear"
    summary = "linear attention, ELU + 1, normalised"
    state_class = LinearAttentionState

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, LinearAttentionState]:
        """See Layer."""
        return linear_attention(q, k, v, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens)

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        return Writes(Rule(error=False, reads="S/z"), feature(k, "elu1"), v)
