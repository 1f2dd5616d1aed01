"""A short causal depthwise convolution followed by SiLU: y_t = silu(sum_j w_j x_{t-W+1+j} + b)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from varla.ops.backends import can_launch
from varla.ops.packing import sequence_of


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None = None
) -> Tensor:
    """y [B, T, C] from x [B, T, C], weight [C, W] and bias [C]; `before` [rows, W - 1, C] holds the preceding tokens.

    There is one row of `before` for each sequence: B of them, or N with cu_seqlens [N + 1] and B = 1. On a GPU this is
    one kernel, elsewhere PyTorch's convolution. Under autocast, y has autocast's dtype.
    """
    if can_launch(*(y for y in (x, weight, bias, before) if y is not None)):
        from varla.ops.triton.convolution import convolve

        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        return convolve(x, weight, bias, before, cu_seqlens)
    return plain(x, weight, bias, before, cu_seqlens)


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The same in PyTorch: each sequence is put after its `before`, and one convolution runs over all of them."""
    past = weight.shape[1] - 1
    if cu_seqlens is None:
        return _convolved(torch.cat((before.to(x.dtype), x), 1), weight, bias)
    T, N = x.shape[1], before.shape[0]
    cu_seqlens = cu_seqlens.to(x.device, torch.int64)
    row = torch.arange(N, device=x.device)[:, None]
    tokens = torch.arange(T, device=x.device) + (sequence_of(cu_seqlens, T) + 1) * past
    earlier = cu_seqlens[:-1, None] + row * past + torch.arange(past, device=x.device)  # [N, W - 1]
    extended = x.new_zeros(T + N * past, x.shape[2])
    extended = extended.index_copy(0, tokens, x[0]).index_copy(0, earlier.flatten(), before.to(x.dtype).flatten(0, 1))
    return _convolved(F.pad(extended, (0, 0, past, 0))[None], weight, bias)[:, tokens]


def _convolved(extended: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[B, W - 1 + T, C] to [B, T, C]."""
    return F.silu(F.conv1d(extended.mT, weight[:, None], bias, groups=weight.shape[0])).mT


def last_inputs(x: Tensor, before: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """`before` of the next call: the last W - 1 tokens of every sequence, [rows, W - 1, C], as a copy.

    A view would keep all of x alive as long as the state.
    """
    past = before.shape[1]
    before = before.to(x.dtype)
    if cu_seqlens is None:
        if torch.compiler.is_compiling():  # without a branch, which would bind the traced graph to T >= W - 1
            return torch.cat((before, x), 1)[:, x.shape[1] :].clone()
        kept = max(0, past - x.shape[1])  # tokens of `before` that are still among the last W - 1
        return torch.cat((before[:, past - kept :], x[:, x.shape[1] - past + kept :]), 1)
    cu_seqlens = cu_seqlens.to(x.device, torch.int64)
    begin, end = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    token = end - past + torch.arange(past, device=x.device)  # [N, W - 1]; those below `begin` are in `before`
    earlier = (token - begin + past).clamp(max=max(past - 1, 0))
    old = before.gather(1, earlier[..., None].expand(-1, -1, x.shape[2]))
    if x.shape[1] == 0:
        return old
    return torch.where((token >= begin)[..., None], x[0][token.clamp(min=0)], old)
