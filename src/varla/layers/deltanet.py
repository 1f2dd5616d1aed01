"""DeltaNet (Yang et al. 2024): the delta rule with a learned write strength."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import silu

from varla.layers.base import Layer
from varla.layers.writes import Rule, Writes
from varla.ops import DeltaRuleState, delta_rule
from varla.ops.features import unit
from varla.ops.split import Packing


class DeltaNet(Layer):
    """S (I - b k k^T) + b v k^T with unit keys and queries after SiLU, and b = sigmoid of a projection, one a head."""

    name = "deltanet"
    summary = "DeltaNet of Yang et al. 2024: S(I - b k k^T) + b v k^T"
    state_class = DeltaRuleState

    def __init__(self, d_model: int, n_heads: int, **shared: Any):
        """Options: those that all mechanisms share."""
        super().__init__(d_model, n_heads, **shared)
        self.beta = nn.Linear(d_model, n_heads, bias=self.q.bias is not None)

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, DeltaRuleState]:
        """See Layer."""
        beta = self.beta(x).sigmoid()
        return delta_rule(silu(q), silu(k), v, beta, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens)

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        return Writes(Rule(), unit(silu(k))[0], v, beta=self.beta(x).sigmoid())
