"""The short convolution and its SiLU as one kernel, forward and backward; see varla/ops/convolution.py.

A program has BT tokens of BC channels. It reads each token's W inputs where they lie, most of them from a cache: x is
read from memory once and y written once. PyTorch's convolution wants channels first, and pays for turning x and y
around. The backward makes the sums before SiLU again, of its tokens and of the W - 1 after each, on which x_t has a
part; filters get a program's share of their gradients, which are summed afterwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.chunk.op import refuse_double_backward
from varla.ops.convolution import plain
from varla.ops.operator import operator
from varla.ops.packing import sequence_of, token_bounds
from varla.ops.triton.plan import on_device, parts

TOKENS, CHANNELS, WARPS = 64, 32, 8  # of a program: eight numbers to a thread leave room for others beside it


@triton.jit
def tile_of(C, BT: tl.constexpr, BC: tl.constexpr):
    """(number of the tile of tokens, its tokens [BT], its channels [BC]) of a program; channels run fastest."""
    blocks = tl.cdiv(C, BC)
    tile = tl.program_id(0) // blocks
    return tile, tile * BT + tl.arange(0, BT), tl.program_id(0) % blocks * BC + tl.arange(0, BC)


@triton.jit
def places_of(token, tokens, T, places, PACKED: tl.constexpr):
    """(sequence, position in it, tokens of it from there on) of `token` [BT]; places [tokens, 3], if PACKED."""
    if PACKED:
        at = places + token * 3
        inside = token < tokens
        return tl.load(at, inside, 0), tl.load(at + 1, inside, 0), tl.load(at + 2, inside, 0)
    else:
        row = token // T
        return row, token - row * T, tl.where(token < tokens, T - token % T, 0)


@triton.jit
def input_at(x, before, token, row, position, left, shift, c, C, W: tl.constexpr):
    """x [BT, BC] `shift` tokens later, or from `before` [rows, W - 1, C]; zero beyond the sequence's end."""
    at = position + shift
    channel = (c < C)[None, :]
    within = (left > 0) & (shift < left)
    here = x + (token + shift).to(tl.int64)[:, None] * C + c[None, :]
    earlier = before + (row * (W - 1) + W - 1 + at).to(tl.int64)[:, None] * C + c[None, :]
    value = tl.load(here, (within & (at >= 0))[:, None] & channel, 0.0).to(tl.float32)
    return value + tl.load(earlier, (within & (at < 0))[:, None] & channel, 0.0).to(tl.float32)


@triton.jit
def sum_at(
    x, weight, bias, before, token, row, position, left, later, c, C, W: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """What SiLU is taken of, [BT, BC], `later` tokens later."""
    total = tl.zeros([token.shape[0], c.shape[0]], tl.float32)
    if BIAS:
        total += tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        w = tl.load(weight + c * W + j, c < C, 0.0).to(tl.float32)
        total += w[None, :] * input_at(x, before, token, row, position, left, later - (W - 1) + j, c, C, W)
    return total


@triton.jit
def slope_at(
    x, weight, bias, before, dy, token, row, position, left, later, c, C, W: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """The gradient of that; zero beyond the sequence's end."""
    total = sum_at(x, weight, bias, before, token, row, position, left, later, c, C, W, BIAS)
    gate = tl.sigmoid(total)
    inside = (later < left)[:, None] & (c < C)[None, :]
    g = tl.load(dy + (token + later).to(tl.int64)[:, None] * C + c[None, :], inside, 0.0).to(tl.float32)
    return g * gate * (1 + total * (1 - gate))


@triton.jit
def convolve_forward(
    x, weight, bias, before, places, y, tokens, T, C,
    W: tl.constexpr, BIAS: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y [tokens, C]."""
    _, token, c = tile_of(C, BT, BC)
    row, position, left = places_of(token, tokens, T, places, PACKED)
    total = sum_at(x, weight, bias, before, token, row, position, left, 0, c, C, W, BIAS)
    where = y + token.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(where, (total * tl.sigmoid(total)).to(y.dtype.element_ty), (token < tokens)[:, None] & (c < C)[None, :])


@triton.jit
def convolve_backward(
    x, weight, bias, before, places, dy, dx, shares, tokens, T, C,
    W: tl.constexpr, BIAS: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx [tokens, C], and shares [tiles, W + 1, C] of the gradients of filters and bias."""
    tile, token, c = tile_of(C, BT, BC)
    row, position, left = places_of(token, tokens, T, places, PACKED)
    share = shares + tile.to(tl.int64) * (W + 1) * C + c
    slope = slope_at(x, weight, bias, before, dy, token, row, position, left, 0, c, C, W, BIAS)
    tl.store(share + W * C, tl.sum(slope, 0), c < C)
    for j in tl.static_range(W):
        taken = input_at(x, before, token, row, position, left, j - (W - 1), c, C, W)
        tl.store(share + j * C, tl.sum(slope * taken, 0), c < C)
    total = slope * tl.load(weight + c * W + W - 1, c < C, 0.0).to(tl.float32)[None, :]
    for later in tl.static_range(1, W):
        w = tl.load(weight + c * W + W - 1 - later, c < C, 0.0).to(tl.float32)
        slope = slope_at(x, weight, bias, before, dy, token, row, position, left, later, c, C, W, BIAS)
        total += w[None, :] * slope
    where = dx + token.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(where, total.to(dx.dtype.element_ty), (token < tokens)[:, None] & (c < C)[None, :])


@triton.jit
def convolve_before_backward(
    x, weight, bias, before, bounds, dy, dbefore, rows, C,
    W: tl.constexpr, BIAS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dbefore [rows, W - 1, C]: what came before has a part in the first W - 1 tokens. bounds [rows + 1]."""
    _, row, c = tile_of(C, BT, BC)
    inside = row < rows
    token = tl.load(bounds + row, inside, 0)
    left = tl.load(bounds + row + 1, inside, 0) - token
    position = row * 0
    for i in tl.static_range(W - 1):
        total = tl.zeros([BT, BC], tl.float32)
        for later in tl.static_range(i + 1):  # the token that reads it with filter number i - later
            w = tl.load(weight + c * W + i - later, c < C, 0.0).to(tl.float32)
            slope = slope_at(x, weight, bias, before, dy, token, row, position, left, later, c, C, W, BIAS)
            total += w[None, :] * slope
        where = dbefore + (row * (W - 1) + i).to(tl.int64)[:, None] * C + c[None, :]
        tl.store(where, total.to(dbefore.dtype.element_ty), inside[:, None] & (c < C)[None, :])


def _places(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[T, 3]: sequence, position and tokens from there on, of packed tokens; else something that is not read."""
    if cu_seqlens is None:
        return x
    T, bounds = x.shape[1], token_bounds(x, cu_seqlens)
    sequence, token = sequence_of(bounds, T), torch.arange(T, device=x.device)
    return torch.stack((sequence, token - bounds[sequence], bounds[sequence + 1] - token), 1)


def _arguments(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor) -> tuple[list[Tensor], dict[str, int]]:
    """(x, weight, bias, before), contiguous, the third something that is not read if there is none; and constants."""
    tensors = [y.contiguous() for y in (x, weight, weight if bias is None else bias, before)]
    constants = {"W": weight.shape[1], "BIAS": bias is not None, "BT": TOKENS, "BC": CHANNELS, "num_warps": WARPS}
    return tensors, constants


def _grid(count: int, C: int) -> tuple[int]:
    return (parts(count, TOKENS) * parts(C, CHANNELS),)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """y [B, T, C] of x [B, T, C], weight [C, W], bias [C], before [rows, W - 1, C]; cu_seqlens [rows + 1] and B = 1."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return y
    B, T, C = x.shape
    tensors, constants = _arguments(x, weight, bias, before)
    with on_device(x):
        convolve_forward[_grid(B * T, C)](
            *tensors, _places(x, cu_seqlens), y, B * T, T, C, PACKED=cu_seqlens is not None, **constants
        )
    return y


def _convolve_fake(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _convolve_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    before: Tensor,
    cu_seqlens: Tensor | None,
    dy: Tensor,
    to_before: bool,
) -> list[Tensor]:
    """Gradients of x, weight, bias (no elements if there is none) and before (none unless `to_before`)."""
    none = weight.new_empty(0)
    if x.numel() == 0:
        given = (x, weight, bias, before if to_before else None)
        return [torch.zeros_like(y) if y is not None else none for y in given]
    (B, T, C), W = x.shape, weight.shape[1]
    tensors, constants = _arguments(x, weight, bias, before)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dbefore = before.new_empty(before.shape if to_before else (0,))
    shares = x.new_empty(parts(B * T, TOKENS), W + 1, C, dtype=torch.float32)
    dy = dy.contiguous()
    with on_device(x):
        convolve_backward[_grid(B * T, C)](
            *tensors, _places(x, cu_seqlens), dy, dx, shares, B * T, T, C,
            PACKED=cu_seqlens is not None, **constants,
        )  # fmt: skip
        if dbefore.numel():
            convolve_before_backward[_grid(len(before), C)](
                *tensors, token_bounds(x, cu_seqlens), dy, dbefore, len(before), C, **constants
            )
    total = shares.sum(0)
    dbias = none if bias is None else total[W].to(bias.dtype)
    return [dx, total[:W].T.contiguous().to(weight.dtype), dbias, dbefore]


def _convolve_backward_fake(x, weight, bias, before, cu_seqlens, dy, to_before):  # type: ignore[no-untyped-def]
    none = weight.new_empty(0)
    given = (x, weight, none if bias is None else bias, before if to_before else none)
    return [torch.empty_like(y, memory_format=torch.contiguous_format) for y in given]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy):  # type: ignore[no-untyped-def]
    x, weight, bias, before, cu_seqlens = ctx.saved_tensors
    if torch.is_grad_enabled():  # derivatives of the gradients are wanted: the plain form has them
        return *_plain_gradients([x, weight, bias, before], cu_seqlens, dy), None
    wanted = ctx.needs_input_grad[3]
    dx, dweight, dbias, dbefore = convolve_backward_triton(x, weight, bias, before, cu_seqlens, dy, wanted)
    return dx, dweight, None if bias is None else dbias, dbefore if wanted else None, None


def _plain_gradients(given: list[Tensor | None], cu_seqlens: Tensor | None, dy: Tensor) -> list[Tensor | None]:
    """Of those that are there, with a graph of their own."""
    given = [y if y is None or y.requires_grad else y.detach().requires_grad_() for y in given]
    there = [y for y in given if y is not None]
    found = iter(torch.autograd.grad(plain(*given, cu_seqlens), there, dy, create_graph=True))
    return [None if y is None else next(found) for y in given]


convolve = operator("convolve", _convolve, _convolve_fake, _backward, _setup_context)
convolve_backward_triton = operator(
    "convolve_backward", _convolve_backward, _convolve_backward_fake, refuse_double_backward("triton")
)
