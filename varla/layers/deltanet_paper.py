"""What the VLA paper compares with under the name DeltaNet, which is not the DeltaNet of Yang et al. 2024.

Its equation decays all of S by a gate and writes with full strength: S <- g S + (v - S k) k^T. In the text the gate is
a scalar; the authors' experiments gate every value channel (row of S) by itself. Keys are of unit length, queries
ELU + 1, and there is no normaliser.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from varla.layers.base import FLOAT32, Layer
from varla.ops import DeltaRuleState, State, decayed_delta_rule
from varla.ops.arguments import check_choice
from varla.ops.features import feature

GATES = ("scalar", "channel")
LOOP = 128  # tokens, up to which a gate per channel is computed one by one


class PaperDeltaNet(Layer):
    """`gate="scalar"`: one gate a head and token. `gate="channel"`: one for every value channel of a head."""

    name = "deltanet-paper"
    summary = "the paper's 'DeltaNet': g S + (v - S k) k^T, gate scalar or per channel"

    def __init__(self, d_model: int, n_heads: int, *, gate: str = "scalar", **shared: Any):
        """Options: `gate`, and those that all mechanisms share."""
        check_choice("gate", gate, GATES)
        super().__init__(d_model, n_heads, **shared)
        self.per_channel = gate == "channel"
        gates = n_heads * (self.value_dim if self.per_channel else 1)
        self.gate = nn.Linear(d_model, gates, bias=self.q.bias is not None)

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, DeltaRuleState]:
        """See Layer. Rows of S do not mix: a head with a gate per channel is Dv heads with one value channel each."""
        q = feature(q, "elu1")
        shape = v.shape
        if self.per_channel:
            q, k = (x.repeat_interleave(self.value_dim, 2) for x in (q, k))
            v = v.reshape(*v.shape[:2], self.n_heads * self.value_dim, 1)
        o, state = decayed_delta_rule(
            q, k, v, logsigmoid(self.gate(x)), initial_state=memory, return_state=True, cu_seqlens=cu_seqlens,
            **self._form(x.shape[1]),
        )  # fmt: skip
        return o.reshape(shape), state

    def _form(self, T: int) -> dict[str, Any]:
        """How it is computed. With one value to a head a chunk's matrices are larger than S, and a loop is faster."""
        if not self.per_channel:
            return {}
        return {"backend": "reference"} if T <= LOOP else {"chunk_size": 16}

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """The norm of S of each head, whose rows may be kept as heads of their own."""
        S = memory.tensors()["S"]
        return {"|S|": torch.linalg.matrix_norm(S.reshape(S.shape[0], self.n_heads, self.value_dim, self.head_dim))}

    def memory_bytes(self, T: int) -> int:
        """S and the token count."""
        return self.n_heads * self.head_dim * self.value_dim * FLOAT32 + 8
