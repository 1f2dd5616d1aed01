"""The specification: Algorithm 1 of the paper, one token at a time, in plain PyTorch with autograd.

Names follow the paper: S memory, A inverse penalty, u penalty direction, alpha write direction, e residual. Every
other form of `varla.vla` is tested against this one. Two lines of Algorithm 1 are left out on purpose: the clamp of
delta, which is at least 1 whenever A is positive definite (a clamp would only hide that it no longer is), and the
clamps of the norms, whose only job is the zero vector, for which see `features.unit`.
"""

import torch
from torch import Tensor

from varla.ops.features import feature, safe_reciprocal, unit
from varla.ops.settings import VLASettings
from varla.ops.state import VLAState


def step(q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: VLAState, settings: VLASettings) -> tuple[Tensor, VLAState]:
    """One token. q, k, u [B, H, D], v [B, H, Dv], all in the state's precision; returns (o [B, H, Dv], state)."""
    S, A, z, t = state.S, state.A, state.z, state.t + 1

    k_feat = feature(k, settings.feature_map)  # lines 6-7: feature map, unit key
    k_hat = unit(k_feat)[0] if settings.normalize_key else k_feat

    A = penalty_step(A, u, t, settings)  # lines 8-15
    alpha = write_direction(apply(A, k_hat), k_hat, settings.gain)  # lines 17-18
    e = v - apply(S, k_hat)  # line 19: prediction residual
    S = S + outer(e, alpha)  # line 20: eq. (s-update)

    q = feature(q, settings.feature_map)  # lines 22-24: eq. (output)
    z = z + k_feat
    o = apply(S, q)
    if settings.normalizer:
        o = o / dot(z, q).clamp(min=settings.eps)
    return o, VLAState(S, A, z, t)


def penalty_step(A: Tensor, u: Tensor, t: Tensor, settings: VLASettings) -> Tensor:
    """Lines 8 to 15: A [B, H, D, D] after the token number t [B] with raw penalty direction u [B, H, D]."""
    if not settings.update_penalty:
        return A
    u = unit(u)[0] * settings.penalty_scale  # line 8
    z_sm = apply(A, u)  # lines 10-12: Sherman-Morrison, eq. (sm)
    delta = 1 + dot(u, z_sm)
    A = A - outer(z_sm, z_sm) / delta[..., None]
    if settings.beat:  # lines 13-15: on the beat, before the gain of this same token
        period, eta = settings.beat
        on_beat = (t % period == 0).to(A.dtype)
        A = A + eta * on_beat[:, None, None, None] * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return A


def vla_reference(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: VLAState, settings: VLASettings
) -> tuple[Tensor, VLAState]:
    """Run `step` over T tokens. q, k, u [B, T, H, D], v [B, T, H, Dv]; returns (o [B, T, H, Dv], state)."""
    # A stands for a symmetric matrix: reading its symmetric part leaves the value alone and gives the derivative
    # that every form agrees on.
    state = VLAState(state.S, symmetric(state.A), state.z, state.t)
    outputs = []
    for q_t, k_t, v_t, u_t in zip(*(x.to(state.S.dtype).unbind(1) for x in (q, k, v, u)), strict=True):
        o, state = step(q_t, k_t, v_t, u_t, state, settings)
        outputs.append(o)
    return torch.stack(outputs, 1).to(v.dtype), state


def write_direction(alpha: Tensor, k_hat: Tensor, gain: str) -> Tensor:
    """Scale alpha = A k by the chosen gain: to unit length, so that k . alpha = 1, or not at all."""
    if gain == "unit":
        return unit(alpha)[0]
    if gain == "projection":
        return alpha * safe_reciprocal(dot(k_hat, alpha))
    return alpha


def apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """[..., i, j] times [..., j] gives [..., i]."""
    return (matrix @ vector[..., None])[..., 0]


def outer(x: Tensor, y: Tensor) -> Tensor:
    """[..., i] and [..., j] give [..., i, j]."""
    return x[..., :, None] * y[..., None, :]


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, which is kept with size 1."""
    return (x * y).sum(-1, keepdim=True)


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of [..., i, i]."""
    return (matrix + matrix.mT) / 2
