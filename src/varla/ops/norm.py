"""The RMS norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x ** 2) + eps) * weight, over the last dimension."""

import torch
from torch import Tensor
from torch.nn import functional as F

from varla.ops.backends import worth_a_kernel

WIDEST = 8192  # elements in a row; a wider one does not fit in a program's registers


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, wide: bool = False) -> Tensor:
    """The norm [*, N] of x [*, N] with weight [N]. The result has the wider of their dtypes.

    The computation is in float32 or wider: one kernel for a large x on a GPU, else PyTorch's norm. Under autocast on a
    GPU the result has autocast's dtype, because the following matrix product would convert it anyway; `wide` keeps the
    wider dtype.
    """
    working = torch.promote_types(x.dtype, weight.dtype)
    narrow = x.is_cuda and torch.is_autocast_enabled("cuda") and not wide and working != torch.float64
    dtype = torch.get_autocast_dtype("cuda") if narrow else working
    if weight.shape[0] <= WIDEST and working != torch.float64 and worth_a_kernel(x, weight):
        from varla.ops.triton.norm import normalize

        return normalize(x, weight, eps, dtype)
    return plain(x, weight, eps, dtype)


def plain(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The same in PyTorch, converted to `dtype`."""
    working = torch.promote_types(x.dtype, weight.dtype)
    return F.rms_norm(x.to(working), weight.shape, weight.to(working), eps).to(dtype)
