"""Gated DeltaNet (Yang et al. 2025): the delta rule with a learned write strength and a learned decay."""

from typing import Any

from torch import Tensor

from varla.layers.gates import GatedLayer
from varla.layers.writes import Rule, Writes
from varla.ops import DeltaRuleState, delta_rule
from varla.ops.split import Packing


class GatedDeltaNet(GatedLayer):
    """S <- d S, then S <- S + beta (v - S k) k^T, o = D ** -0.5 S q, with unit keys and queries after SiLU.

    beta is a sigmoid of a projection of the input, and log d = -rate * softplus of another, both one a head.
    """

    name = "gated-deltanet"
    summary = "Gated DeltaNet of Yang et al. 2025: d S(I - b k k^T) + b v k^T"
    state_class = DeltaRuleState

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, DeltaRuleState]:
        """See Layer."""
        gates = self.gates(x, q.dtype)
        return delta_rule(
            q, k, v, **gates, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens, **self.FEATURES
        )

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        gates = self.gates(x, k.dtype)
        return Writes(Rule(), self.keys(k), v, beta=gates["beta"], decay=gates["decay"].exp())
