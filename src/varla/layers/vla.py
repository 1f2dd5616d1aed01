"""Variational Linear Attention as a layer."""

from typing import Any

import torch
from torch import Tensor, nn

from varla.layers.base import Layer
from varla.ops import State, VLAState, vla, vla_step
from varla.ops.features import feature, unit
from varla.ops.reference import apply, dot, write_direction


class VLA(Layer):
    """Writes the prediction error along the direction that the penalty leaves free.

    The penalty directions u are a projection W_u of the raw keys of all heads together, split into heads again. The
    operator divides its output by a sum that grows with the sequence. The paper's results need a norm over the merged
    heads to undo that, which its text does not mention (preset `paper`).
    """

    name = "vla"
    summary = "Variational Linear Attention (Algorithm 1 of the paper)"
    state_class = VLAState

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        lambda0: float = 0.1,
        refresh_every: int | None = 20,
        refresh: float = 1e-3,
        eps: float = 1e-4,
        gain: str = "unit",
        penalty_scale: float | None = None,
        normalizer: bool = True,
        normalize_key: bool = True,
        update_penalty: bool = True,
        **shared: Any,
    ):
        """Options: the operator's, and those that all mechanisms share."""
        super().__init__(d_model, n_heads, **shared)
        width = n_heads * self.head_dim
        self.u = nn.Linear(width, width, bias=self.q.bias is not None)
        self.normalize_key, self.gain = normalize_key, gain
        self.options: dict[str, Any] = {
            "lambda0": lambda0,
            "refresh_every": refresh_every,
            "refresh": refresh,
            "eps": eps,
            "gain": gain,
            "penalty_scale": penalty_scale,
            "normalizer": normalizer,
            "normalize_key": normalize_key,
            "update_penalty": update_penalty,
        }
        # A wrong option is refused here, not at the first batch; on the CPU, even while a model is made on "meta".
        zero = torch.zeros(1, 0, n_heads, self.head_dim, device="cpu")
        vla(zero, zero, zero, zero, **self.options)

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, VLAState]:
        """See Layer."""
        u = self.heads(self.u(k.flatten(2)))
        if k.shape[1] == 1 and cu_seqlens is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            o, state = vla_step(q[:, 0], k[:, 0], v[:, 0], u[:, 0], memory, **self.options)  # on a GPU, one kernel
            return o[:, None], state
        o, state = vla(q, k, v, u, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens, **self.options)
        return o, state

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """Norms of S and A, and k . a between key and write direction (1 where they agree)."""
        A = memory.tensors()["A"]
        k_hat = feature(k.to(A.dtype), "elu1")
        k_hat = unit(k_hat)[0] if self.normalize_key else k_hat
        a = write_direction(apply(A, k_hat), k_hat, self.gain)
        return {**super().readings(memory, k), "|A|": torch.linalg.matrix_norm(A), "k.a": dot(k_hat, a)[..., 0]}
