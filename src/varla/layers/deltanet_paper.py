"""What the VLA paper compares with under the name DeltaNet, which is not the DeltaNet of Yang et al. 2024.

Its equation decays all of S by a gate and writes with full strength: S <- g S + (v - S k) k^T. In the text the gate is
a scalar; the authors' experiments gate every value channel (row of S) by itself. Keys are of unit length, queries
ELU + 1, and there is no normaliser.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from varla.arguments import check_choice
from varla.layers.base import Layer
from varla.layers.writes import Rule, Writes
from varla.ops import DeltaRuleState, decayed_delta_rule
from varla.ops.features import feature, unit
from varla.ops.memory.ranks import refuse_channels
from varla.ops.split import Packing

GATES = ("scalar", "channel")


class PaperDeltaNet(Layer):
    """`gate="scalar"`: one gate a head and token. `gate="channel"`: one for every value channel of a head."""

    name = "deltanet-paper"
    summary = "the paper's 'DeltaNet': g S + (v - S k) k^T, gate scalar or per channel"
    state_class = DeltaRuleState

    def __init__(self, d_model: int, n_heads: int, *, gate: str = "scalar", **shared: Any):
        """Options: `gate`, and those that all mechanisms share."""
        check_choice("gate", gate, GATES)
        super().__init__(d_model, n_heads, **shared)
        self.per_channel = gate == "channel"
        gates = n_heads * (self.value_dim if self.per_channel else 1)
        self.gate = nn.Linear(d_model, gates, bias=self.q.bias is not None)

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, DeltaRuleState]:
        """See Layer."""
        gate = self.gate(x)
        return decayed_delta_rule(
            feature(q, "elu1"), k, v, logsigmoid(gate.reshape(v.shape) if self.per_channel else gate),
            initial_state=memory, return_state=True, cu_seqlens=cu_seqlens,
        )  # fmt: skip

    def check_ranks(self, ranks: int) -> None:
        """See Layer."""
        if self.per_channel:
            refuse_channels()

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        gate = self.gate(x).sigmoid()
        return Writes(Rule(decay_first=False), unit(k)[0], v, decay=gate.reshape(v.shape) if self.per_channel else gate)
