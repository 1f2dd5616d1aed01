"""Algorithm 2 of the paper, corrected: the recurrence of S as an associative scan.

The paper writes S_t = F_t S_{t-1} + G_t with G_t = e_t alpha_t^T. That G_t contains S_{t-1} through the residual
e_t, and S is values by keys, so F_t must stand on the right. What is associative is

    S_t = S_{t-1} F_t + G_t,    F_t = I - k_t alpha_t^T,    G_t = v_t alpha_t^T,
    (F_l, G_l) then (F_r, G_r)  =  (F_l F_r, G_l F_r + G_r).

Cost, plainly: depth O(log T) in S, but the A loop before it stays sequential, the scan does 2 T products of D x D
matrices, O(T D^2 (D + Dv)) work against O(T D (D + Dv)) of the loop, and it keeps T D (D + Dv) numbers. It is here
because the paper has it; the chunk-wise form is better in every respect.
"""

import torch
from torch import Tensor

from varla.ops.features import feature, unit
from varla.ops.reference import apply, dot, outer, penalty_step, symmetric, write_direction
from varla.ops.settings import VLASettings
from varla.ops.state import VLAState


def vla_scan(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: VLAState, settings: VLASettings
) -> tuple[Tensor, VLAState]:
    """Scan over T tokens. q, k, u [B, T, H, D], v [B, T, H, Dv]; returns (o [B, T, H, Dv], state)."""
    out_dtype = v.dtype
    q, k, v, u = (x.to(state.S.dtype) for x in (q, k, v, u))
    q, k_feat = feature(q, settings.feature_map), feature(k, settings.feature_map)
    k_hat = unit(k_feat)[0] if settings.normalize_key else k_feat

    A, t = symmetric(state.A), state.t
    alphas = []
    for k_t, u_t in zip(k_hat.unbind(1), u.unbind(1), strict=True):
        t = t + 1
        A = penalty_step(A, u_t, t, settings)
        alphas.append(write_direction(apply(A, k_t), k_t, settings.gain))
    alpha = torch.stack(alphas, 1)

    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    F, G = prefix(eye - outer(k_hat, alpha), outer(v, alpha))
    S = state.S[:, None] @ F + G  # [B, T, H, Dv, D]

    z = state.z[:, None] + k_feat.cumsum(1)
    o = apply(S, q)
    if settings.normalizer:
        o = o / dot(z, q).clamp(min=settings.eps)
    return o.to(out_dtype), VLAState(S[:, -1], A, z[:, -1], t)


def prefix(F: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """All prefixes of (F, G) along dimension 1. F [B, T, H, D, D], G [B, T, H, Dv, D], T >= 1.

    Odd-even recursion: combine neighbours, scan the half as many results (these are the prefixes that end at odd
    positions), and extend each by one to get the rest.
    """
    T = F.shape[1]
    if T == 1:
        return F, G
    odd_F, odd_G = prefix(*combine(F[:, : T - 1 : 2], G[:, : T - 1 : 2], F[:, 1::2], G[:, 1::2]))
    even_F, even_G = combine(odd_F[:, : (T - 1) // 2], odd_G[:, : (T - 1) // 2], F[:, 2::2], G[:, 2::2])
    return interleave(F[:, :1], odd_F, even_F), interleave(G[:, :1], odd_G, even_G)


def combine(F_l: Tensor, G_l: Tensor, F_r: Tensor, G_r: Tensor) -> tuple[Tensor, Tensor]:
    """First the left map, then the right one."""
    return F_l @ F_r, G_l @ F_r + G_r


def interleave(first: Tensor, odd: Tensor, even: Tensor) -> Tensor:
    """first, odd[0], even[0], odd[1], even[1], ... along dimension 1; `odd` may be one longer than `even`."""
    pairs = torch.stack((odd[:, : even.shape[1]], even), 2).flatten(1, 2)
    return torch.cat((first, pairs, odd[:, even.shape[1] :]), 1)
