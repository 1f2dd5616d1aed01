"""The RMS norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x ** 2) + eps) * weight, over the last dimension."""

import torch
from torch import Tensor
from torch.nn import functional as F

from varla.ops.backends import worth_a_kernel

WIDEST = 8192  # a row beyond does not fit into a program's registers


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, wide: bool = False) -> Tensor:
    """[*, N] to [*, N] of x and weight [N], in the wider of their types, found in float32 or better.

    On a GPU one kernel where x is large, else PyTorch's. Under autocast the result on a GPU has autocast's type, which
    is what a matrix after it would make of it, unless it is to be `wide` there, too.
    """
    working = torch.promote_types(x.dtype, weight.dtype)
    narrow = x.is_cuda and torch.is_autocast_enabled("cuda") and not wide and working != torch.float64
    found = torch.get_autocast_dtype("cuda") if narrow else working
    if weight.shape[0] <= WIDEST and working != torch.float64 and worth_a_kernel(x, weight):
        from varla.ops.triton.norm import normalize

        return normalize(x, weight, eps, found)
    return plain(x, weight, eps, found)


def plain(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The same by PyTorch, then in this type."""
    working = torch.promote_types(x.dtype, weight.dtype)
    return F.rms_norm(x.to(working), weight.shape, weight.to(working), eps).to(dtype)
