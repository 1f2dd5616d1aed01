"""Variational Linear Attention as a layer."""

from typing import Any

import torch
from torch import Tensor, nn

from varla.layers.base import Layer
from varla.layers.writes import Writes, penalised
from varla.ops import State, VLAState, vla, vla_step
from varla.ops.algebra import apply, dot
from varla.ops.directions.gain import write_direction
from varla.ops.features import Features
from varla.ops.split import Packing
from varla.ops.vla import VLASettings


class VLA(Layer):
    """Writes the prediction error along the direction that the penalty leaves free.

    The penalty directions u are a projection W_u of the raw keys of all heads together, split into heads again. The
    operator divides its output by a sum that grows with the sequence. The paper's results need a norm over the merged
    heads to undo that, which its text does not mention (preset `paper`).
    """

    name = "vla"
    summary = "Variational Linear Attention (Algorithm 1 of the paper)"
    state_class = VLAState

    OPTIONS = VLASettings
    NO_OPTIONS = ("beat",)  # for forgetting, which this layer does not have

    def __init__(self, d_model: int, n_heads: int, **options: Any):
        """Options: those of `varla.vla` (VLASettings), and those that all mechanisms share."""
        allowed = VLASettings.__dataclass_fields__.keys() - self.NO_OPTIONS
        own = {name: options.pop(name) for name in list(options) if name in allowed}
        super().__init__(d_model, n_heads, **options)
        self.settings = VLASettings(**own)  # a wrong value is refused here, not at the first batch
        self.options = own
        width = n_heads * self.head_dim
        self.u = nn.Linear(width, width, bias=self.q.bias is not None)

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, VLAState]:
        """See Layer."""
        u = self.heads(self.u(k.flatten(2)))
        if decodes(k, cu_seqlens):
            o, state = vla_step(q[:, 0], k[:, 0], v[:, 0], u[:, 0], memory, **self.options)
            return o[:, None], state
        return vla(q, k, v, u, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens, **self.options)

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """Norms of S and A, and k . a between key and write direction (1 where they agree)."""
        return {**super().readings(memory, k), **penalty_readings(memory, k, self.settings)}

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        return penalised(self.settings, k, v, self.heads(self.u(k.flatten(2))))


def decodes(k: Tensor, cu_seqlens: Packing) -> bool:
    """Whether keys [B, T, H, D] are one token without gradients: `vla_step` is then one kernel on a GPU."""
    one = k.shape[1] == 1 and cu_seqlens is None
    return one and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def penalty_readings(memory: State, k: Tensor, settings: VLASettings) -> dict[str, Tensor]:
    """The norm of A, and k . a between the raw key k [B, H, D] and its write direction, each [B, H]."""
    A = memory.tensors()["A"]
    k_hat = Features(k.to(A.dtype), settings.feature_map, settings.normalize_key).y
    a = write_direction(apply(A, k_hat), k_hat, settings.gain)
    return {"|A|": torch.linalg.matrix_norm(A), "k.a": dot(k_hat, a)[..., 0]}
