"""The RMS norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x ** 2) + eps) * weight, over the last dimension."""

import torch
from torch import Tensor
from torch.nn import functional as F

from varla.ops.backends import no_kernels

WIDEST = 8192  # a row beyond does not fit into a program's registers


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[*, N] to [*, N] of x and weight [N], in the wider of their types, found in float32 or better.

    On a GPU one kernel, else PyTorch's. Under autocast, the kernel's result has autocast's type: that is what the
    matrix after it would make of it.
    """
    wide = torch.promote_types(x.dtype, weight.dtype)
    if x.is_cuda and weight.shape[0] <= WIDEST and wide != torch.float64 and no_kernels(x) is None:
        from varla.ops.triton.norm import normalize

        found = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else wide
        return normalize(x, weight, eps, found)  # type: ignore[no-any-return]
    return plain(x, weight, eps, wide)


def plain(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The same by PyTorch, in this type."""
    return F.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps)
