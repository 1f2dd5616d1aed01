"""Linear attention (Katharopoulos et al. 2020) with ELU + 1."""

from typing import Any

from torch import Tensor

from varla.layers.base import FLOAT32, Layer
from varla.ops import LinearAttentionState, linear_attention


class LinearAttention(Layer):
    """Adds every value to the memory: S + v phi(k)^T."""

    name = "linear"
    summary = "linear attention, ELU + 1, normalised"

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, LinearAttentionState]:
        """See Layer."""
        o, state = linear_attention(q, k, v, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens)
        return o, state

    def memory_bytes(self, T: int) -> int:
        """S, z and the token count."""
        return self.n_heads * self.head_dim * (self.value_dim + 1) * FLOAT32 + 8
