"""Algorithm 2 of the paper, corrected: the recurrence of S as an associative scan.

The paper writes S_t = F_t S_{t-1} + G_t with G_t = e_t alpha_t^T. That G_t contains S_{t-1} through the residual
e_t, and S is values by keys, so F_t must stand on the right. What is associative is

    S_t = S_{t-1} F_t + G_t,    F_t = I - k_t alpha_t^T,    G_t = v_t alpha_t^T,
    (F_l, G_l) then (F_r, G_r)  =  (F_l F_r, G_l F_r + G_r).

Cost, plainly: depth O(log T) in S, but the A loop before it stays sequential, the scan does 2 T products of D x D
matrices, O(T D^2 (D + Dv)) work against O(T D (D + Dv)) of the loop, and it keeps T D (D + Dv) numbers. It is here
because the paper has it; the chunk-wise form is better in every respect.
"""

from typing import Any

import torch
from torch import Tensor

import varla
from varla.ops.algebra import apply, dot, eye_like, outer
from varla.ops.features import Features
from varla.ops.vla import VLASettings


def vla_scan(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, initial_state: varla.VLAState | None = None, **options: Any
) -> tuple[Tensor, varla.VLAState]:
    """`varla.vla` by an associative scan over T >= 1 tokens: (o [B, T, H, Dv], state). Options as there."""
    settings, D = VLASettings(**options), k.shape[-1]
    start, dtype = initial_state or _fresh(q, v, settings), v.dtype
    q, k, v, u = (x.to(start.S.dtype) for x in (q, k, v, u))
    queries = Features(q, settings.feature_map, normalize=False).y
    keys = Features(k, settings.feature_map, settings.normalize_key)

    along, _ = settings.halves
    named = {name: getattr(along, name) for name in along.__dataclass_fields__}
    before = varla.DirectionState(start.A, start.t)
    alpha, after = varla.directions(k, u, initial_state=before, return_state=True, backend="reference", **named)

    F, G = prefix(eye_like(k, D) - outer(keys.y, alpha), outer(v, alpha))
    S = start.S[:, None] @ F + G  # [B, T, H, Dv, D]
    z = start.z[:, None] + keys.F.cumsum(1)
    o = apply(S, queries)
    if settings.normalizer:
        o = o / dot(z.to(o.dtype), queries).clamp(min=settings.eps)
    return o.to(dtype), varla.VLAState(S[:, -1], after.A, z[:, -1], after.t)


def _fresh(q: Tensor, v: Tensor, settings: VLASettings) -> varla.VLAState:
    B, _, H, D = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    state = varla.VLAState.zeros({"B": B, "H": H, "D": D, "Dv": v.shape[-1]}, wide, q.device)
    state.A.diagonal(dim1=-2, dim2=-1).fill_(1 / settings.lambda0)
    return state


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
