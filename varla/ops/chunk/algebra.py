"""Small matrix helpers that the parts of the chunk form share."""

import torch
from torch import Tensor


def eye_like(x: Tensor, n: int) -> Tensor:
    """The n x n identity in x's precision, on x's device."""
    return torch.eye(n, dtype=x.dtype, device=x.device)


def symmetric(x: Tensor) -> Tensor:
    """The symmetric part of [M, D, D]. (A product that is symmetric on paper is so only up to rounding.)"""
    return (x + x.mT).mul_(0.5)
