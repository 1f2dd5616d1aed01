"""The specification of `directions`: lines 8 to 18 of Algorithm 1, one token at a time, in plain PyTorch with autograd.

Names follow the paper: A is the inverse penalty, u the penalty direction, alpha the write direction. We leave out two
clamps of Algorithm 1. A positive definite A makes delta at least 1, so its clamp would only hide that A has lost
positive definiteness. The clamps of the norms matter only for the zero vector, which `features.unit` handles.
"""

import torch
from torch import Tensor

from varla.ops.algebra import add_to_inverse, apply, dot, eye_like, faded_inverse, outer, symmetric
from varla.ops.checks import readable
from varla.ops.directions.gain import write_direction
from varla.ops.directions.settings import DirectionSettings
from varla.ops.features import Features, unit


def directions_reference(
    k: Tensor, u: Tensor, strength: Tensor | None, A: Tensor, t: Tensor, settings: DirectionSettings
) -> tuple[Tensor, Tensor]:
    """(a [B, T, H, D], A) from raw k, u [B, T, H, D] and A [B, H, D, D] after t [B] tokens.

    strength [B, T, H, 1] is the squared length of u; None: the length is a setting.
    """
    # A is symmetric. Taking its symmetric part does not change its value, and defines the derivative for all forms.
    A = symmetric(A)
    alphas = []
    strengths = [None] * k.shape[1] if strength is None else strength.unbind(1)
    for k_t, u_t, strength_t in zip(k.unbind(1), u.unbind(1), strengths, strict=True):
        t = t + 1
        k_hat = Features(k_t, settings.feature_map, settings.normalize_key).y  # lines 6-7
        A = penalty_step(A, u_t, t, settings, strength_t)  # lines 8-15
        alphas.append(write_direction(apply(A, k_hat), k_hat, settings.gain))  # lines 17-18
    return torch.stack(alphas, 1), A


def forgetting_reference(
    k: Tensor,
    u: Tensor,
    strength: Tensor | None,
    forget: Tensor,
    A: Tensor,
    f: Tensor,
    t: Tensor,
    settings: DirectionSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """(a [B, T, H, D], A, f): `directions_reference` with forgetting.

    forget [B, T, H, 1] is the logarithm of c in A^-1 <- c A^-1 + w u u^T, and f [B, H] the logarithm of C, the product
    of c since the last beat. With forget_at="beat", A^-1 forgets only there.
    """
    by_token = settings.forget_at == "token"
    A = symmetric(A)
    alphas, shares = [], []
    strengths = [None] * k.shape[1] if strength is None else strength.unbind(1)
    for k_t, u_t, strength_t, forget_t in zip(k.unbind(1), u.unbind(1), strengths, forget.unbind(1), strict=True):
        A, f = give_back(A, f, t, settings)
        t = t + 1
        f = f + forget_t[..., 0]
        if by_token:
            A = A * torch.exp(-forget_t)[..., None]
        k_hat = Features(k_t, settings.feature_map, settings.normalize_key).y
        A = penalty_step(A, u_t, t, settings, strength_t)
        alphas.append(write_direction(apply(A, k_hat), k_hat, settings.gain))
        shares.append(f[..., None])
    if by_token:
        settings.check_prior(torch.stack(shares, 1), strength, k.shape[-1])
    return torch.stack(alphas, 1), A, f


def give_back(A: Tensor, f: Tensor, t: Tensor, settings: DirectionSettings) -> tuple[Tensor, Tensor]:
    """(A, f) after a beat, in rows that have seen a positive multiple of `beat` tokens t [B]; f [B, H] is log C.

    The forgotten prior is given back: A^-1 <- A^-1 + lambda0 (1 - C) I and C <- 1. With forget_at="beat", all but the
    prior is forgotten: A^-1 <- lambda0 I + C (A^-1 - lambda0 I).
    """
    due = (t > 0) & (t % settings.beat == 0)
    if readable(due) and not due.any():
        return A, f
    due = due[:, None]
    if settings.forget_at == "beat":
        return faded_inverse(A, torch.where(due, f.exp(), 1), settings.lambda0)[0], torch.where(due, 0, f)
    m = torch.where(due, -settings.lambda0 * torch.expm1(f), 0)
    return add_to_inverse(A, m)[0], torch.where(due, 0, f)


def penalty_step(
    A: Tensor, u: Tensor, t: Tensor, settings: DirectionSettings, strength: Tensor | None = None
) -> Tensor:
    """Lines 8 to 15: A [B, H, D, D] after token number t [B] with raw penalty direction u [B, H, D].

    With a strength w [B, H, 1], A^-1 gains w u u^T for the unit vector u. The step has no square root of w, so that
    its gradient at w = 0 is finite.
    """
    if not settings.update_penalty:
        return A
    u = unit(u)[0]  # line 8
    if strength is None:
        u = u * settings.length_of_u(u.shape[-1])
    z_sm = apply(A, u)  # lines 10-12: Sherman-Morrison, eq. (sm)
    delta = 1 + (dot(u, z_sm) if strength is None else strength * dot(u, z_sm))
    gained = outer(z_sm, z_sm)
    A = A - (gained if strength is None else strength[..., None] * gained) / delta[..., None]
    if settings.refresh_beat:  # lines 13-15: before the gain of the same token
        period, eta = settings.refresh_beat
        now = (t % period == 0).to(A.dtype)
        A = A + eta * now[:, None, None, None] * eye_like(A, A.shape[-1])
    return A
