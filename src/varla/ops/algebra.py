"""Small matrix helpers that the reference and chunk forms share."""

import torch
from torch import Tensor


def apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """[..., i, j] times [..., j] gives [..., i]."""
    return (matrix @ vector[..., None])[..., 0]


def outer(x: Tensor, y: Tensor) -> Tensor:
    """[..., i] and [..., j] give [..., i, j]."""
    return x[..., :, None] * y[..., None, :]


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, [..., i] and [..., i] to [..., 1]."""
    return (x * y).sum(-1, keepdim=True)


def symmetric(x: Tensor) -> Tensor:
    """The symmetric part of [..., D, D]. Rounding makes a product unsymmetric that is symmetric in exact arithmetic."""
    return (x + x.mT).mul_(0.5)


def left_by_later(log_d: Tensor) -> Tensor:
    """What the tokens behind each token leave of it: the product of their d, from the logarithms [..., T]."""
    later = torch.cat((log_d[..., 1:], torch.zeros_like(log_d[..., :1])), -1)
    return later.flip(-1).cumsum(-1).flip(-1).exp()


def eye_like(x: Tensor, n: int) -> Tensor:
    """The n x n identity with x's dtype, on x's device."""
    return torch.eye(n, dtype=x.dtype, device=x.device)


def add_to_inverse(A: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """((A^-1 + m I)^-1, L) for symmetric positive definite A [..., D, D] and m >= 0 [...]; L L^T = I + m A.

    It solves (I + m A) X = A, which takes no difference of large numbers. Where m = 0, A does not change by a bit.
    """
    L, info = torch.linalg.cholesky_ex(eye_like(A, A.shape[-1]) + m[..., None, None] * A)
    L = L.masked_fill((info != 0)[..., None, None], torch.nan)  # A is not positive definite, or not finite
    # Not torch.cholesky_solve: no CUDA graph can capture it.
    return symmetric(solve_lower_transposed(L, solve_lower(L, A))), L


def inverse(x: Tensor) -> Tensor:
    """The inverse of symmetric positive definite x [..., D, D]; NaN if it is not positive definite."""
    L, info = torch.linalg.cholesky_ex(x)
    L = L.masked_fill((info != 0)[..., None, None], torch.nan)
    R = solve_lower(L, eye_like(x, x.shape[-1]).expand_as(x))  # not torch.cholesky_inverse: see add_to_inverse
    return R.mT @ R


def faded_inverse(A: Tensor, C: Tensor, lambda0: float) -> tuple[Tensor, Tensor]:
    """((lambda0 I + C (A^-1 - lambda0 I))^-1, R) for symmetric positive definite A [..., D, D] and C [...] in [0, 1].

    It is R A with R = (C I + lambda0 (1 - C) A)^-1. Where C = 1, A does not change by a bit.
    """
    C = C[..., None, None]
    R = inverse(C * eye_like(A, A.shape[-1]) + lambda0 * (1 - C) * A)
    return symmetric(R @ A), R


def solve_lower(L: Tensor, X: Tensor, unit: bool = False) -> Tensor:
    """L^-1 X for lower triangular L [M, n, n] and X [M, n, d]. With `unit`, the diagonal is assumed to be 1.

    We solve the transposed system from the right. LAPACK is column-major and reads a row-major tensor as its
    transpose, so nothing is copied.
    """
    solved: Tensor = torch.linalg.solve_triangular(L.mT, X.mT, upper=True, left=False, unitriangular=unit)
    return solved.mT


def solve_lower_transposed(L: Tensor, X: Tensor, unit: bool = False) -> Tensor:
    """L^-T X; see `solve_lower`."""
    solved: Tensor = torch.linalg.solve_triangular(L, X.mT, upper=False, left=False, unitriangular=unit)
    return solved.mT


def by_chunk(x: Tensor, N: int) -> Tensor:
    """[G N, *] as [G, N, *]: G chunks of N heads, ordered by chunk."""
    return x.view(-1, N, *x.shape[1:])
