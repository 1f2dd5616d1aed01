"""Small matrix helpers that the parts of the chunk form share. M matrices are G chunks of N heads, chunk by chunk."""

import torch
from torch import Tensor


def eye_like(x: Tensor, n: int) -> Tensor:
    """The n x n identity in x's precision, on x's device."""
    return torch.eye(n, dtype=x.dtype, device=x.device)


def symmetric(x: Tensor) -> Tensor:
    """The symmetric part of [M, D, D]. (A product that is symmetric on paper is so only up to rounding.)"""
    return (x + x.mT).mul_(0.5)


def solve_lower(L: Tensor, X: Tensor, unit: bool = False) -> Tensor:
    """L^-1 X for lower triangular L [M, n, n] and X [M, n, d]; with `unit`, the diagonal is taken as 1.

    Solved from the right on the transposes, which row-major tensors already are to LAPACK: no copies into column order.
    """
    solved: Tensor = torch.linalg.solve_triangular(L.mT, X.mT, upper=True, left=False, unitriangular=unit)
    return solved.mT


def solve_lower_transposed(L: Tensor, X: Tensor, unit: bool = False) -> Tensor:
    """L^-T X, likewise."""
    solved: Tensor = torch.linalg.solve_triangular(L, X.mT, upper=False, left=False, unitriangular=unit)
    return solved.mT


def by_chunk(x: Tensor, N: int) -> Tensor:
    """[G N, *] as [G, N, *]."""
    return x.view(-1, N, *x.shape[1:])
