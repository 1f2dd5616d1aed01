"""The RMS norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x ** 2) + eps) * weight, over the last dimension."""

import torch
from torch import Tensor
from torch.nn import functional as F

from varla.ops.backends import worth_a_kernel

WIDEST = 8192  # a row beyond does not fit into a program's registers


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[*, N] to [*, N] of x and weight [N], in the wider of their types, found in float32 or better.

    On a GPU one kernel where x is large, else PyTorch's. Under autocast the result on a GPU has autocast's type: that
    is what the matrix after it would make of it.
    """
    wide = torch.promote_types(x.dtype, weight.dtype)
    found = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else wide
    if worth_a_kernel(x) and weight.shape[0] <= WIDEST and wide != torch.float64:
        from varla.ops.triton.norm import normalize

        return normalize(x, weight, eps, found)  # type: ignore[no-any-return]
    return plain(x, weight, eps, wide).to(found)


def plain(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The same by PyTorch, in this type."""
    return F.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps)
