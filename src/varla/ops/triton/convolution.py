"""The short convolution and its SiLU: one kernel forward, two or three backward; see varla/ops/convolution.py.

Forward: a program computes BT tokens of BC channels. It loads the W inputs of each token directly, mostly from the
cache, so x is read from memory once and y written once. PyTorch's convolution needs channels first, and has to
transpose x and y.

Backward: the first kernel recomputes the sums before SiLU and writes their gradients, the *slopes*, in the dtype of x.
It also writes each program's share of the gradients of filters and bias, computed from unrounded slopes; PyTorch sums
the shares. The second kernel computes dx from the slopes. It is separate because x_t appears in W sums: one kernel for
both would compute every slope W times. A third kernel computes the gradient of `before`, if it is needed.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.convolution import plain
from varla.ops.custom_op import empty, operator, plain_gradients, refuse_double_backward
from varla.ops.packing import sequence_of, token_bounds
from varla.ops.triton.plan import parts

# The fastest tiles measured on an H200 (benchmarks/RESULTS.md).
TOKENS, CHANNELS, WARPS = 16, 128, 4  # of a tile
SLOPES, TILES = (32, 32, 4), 32  # the same for `convolve_slopes`, and tiles per program there


@triton.jit
def tile_of(C, BT: tl.constexpr, BC: tl.constexpr):
    """(index of the program's tile along the tokens, its tokens [BT], its channels [BC]); channels vary fastest."""
    blocks = tl.cdiv(C, BC)
    tile = tl.program_id(0) // blocks
    return tile, tile * BT + tl.arange(0, BT), tl.program_id(0) % blocks * BC + tl.arange(0, BC)


@triton.jit
def places_of(token, tokens, T, places, PACKED: tl.constexpr):
    """(sequence, position in it, tokens left in it) for each `token` [BT]. PACKED: they are read from places [*, 3]."""
    if PACKED:
        at = places + token * 3
        inside = token < tokens
        return tl.load(at, inside, 0), tl.load(at + 1, inside, 0), tl.load(at + 2, inside, 0)
    else:
        row = token // T
        return row, token - row * T, tl.where(token < tokens, T - token % T, 0)


@triton.jit
def inputs_at(x, before, token, row, position, inside, c, C, W: tl.constexpr):
    """The W inputs of each token, a tuple of [BT, BC], from x or `before` [rows, W - 1, C]; zero where not `inside`."""
    channel = (c < C)[None, :]
    values = ()
    for j in tl.static_range(W):
        at = position - (W - 1) + j
        in_x = x + (token - (W - 1) + j).to(tl.int64)[:, None] * C + c[None, :]
        in_before = before + (row * (W - 1) + position + j).to(tl.int64)[:, None] * C + c[None, :]
        value = tl.load(in_x, (inside & (at >= 0))[:, None] & channel, 0.0).to(tl.float32)
        value += tl.load(in_before, (inside & (at < 0))[:, None] & channel, 0.0).to(tl.float32)
        values += (value,)
    return values


@triton.jit
def sum_of(values, weight, bias, c, C, W: tl.constexpr, BIAS: tl.constexpr):
    """The sum before SiLU [BT, BC], from the W inputs of each token."""
    total = tl.zeros(values[0].shape, tl.float32)
    if BIAS:
        total += tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        total += tl.load(weight + c * W + j, c < C, 0.0).to(tl.float32)[None, :] * values[j]
    return total


@triton.jit
def turned_at(slopes, weight, token, left, last: tl.constexpr, c, C, W: tl.constexpr):
    """[BT, BC]: the sum over i <= `last` of slope[token + i] * weight[last - i], for the `left` tokens that exist."""
    total = tl.zeros([token.shape[0], c.shape[0]], tl.float32)
    for later in tl.static_range(last + 1):
        inside = (later < left)[:, None] & (c < C)[None, :]
        slope = tl.load(slopes + (token + later).to(tl.int64)[:, None] * C + c[None, :], inside, 0.0).to(tl.float32)
        total += tl.load(weight + c * W + last - later, c < C, 0.0).to(tl.float32)[None, :] * slope
    return total


@triton.jit
def convolve_forward(
    x, weight, bias, before, places, y, tokens, T, C,
    W: tl.constexpr, BIAS: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y [tokens, C]."""
    _, token, c = tile_of(C, BT, BC)
    row, position, _ = places_of(token, tokens, T, places, PACKED)
    inside = token < tokens
    values = inputs_at(x, before, token, row, position, inside, c, C, W)
    total = sum_of(values, weight, bias, c, C, W, BIAS)
    where = y + token.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(where, (total * tl.sigmoid(total)).to(y.dtype.element_ty), inside[:, None] & (c < C)[None, :])


@triton.jit
def convolve_slopes(
    x, weight, bias, before, places, dy, slopes, shares, tokens, T, C, W: tl.constexpr, BIAS: tl.constexpr,
    PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Slopes [tokens, C], and shares [programs, W + 1, C] of the gradients of filters and bias.

    A program goes through TILES tiles, and reduces over the tokens of a tile, across threads, only once at the end.
    """
    stretch, token, c = tile_of(C, BT, BC)
    sums = ()
    for _j in tl.static_range(W + 1):
        sums += (tl.zeros([BT, BC], tl.float32),)
    for i in range(TILES):
        token = (stretch * TILES + i) * BT + tl.arange(0, BT)
        row, position, left = places_of(token, tokens, T, places, PACKED)
        inside = token < tokens
        values = inputs_at(x, before, token, row, position, inside, c, C, W)
        total = sum_of(values, weight, bias, c, C, W, BIAS)
        gate = tl.sigmoid(total)
        where, exists = token.to(tl.int64)[:, None] * C + c[None, :], inside[:, None] & (c < C)[None, :]
        slope = tl.load(dy + where, exists, 0.0).to(tl.float32) * gate * (1 + total * (1 - gate))
        tl.store(slopes + where, slope.to(slopes.dtype.element_ty), exists)
        added = ()
        for j in tl.static_range(W):
            added += (sums[j] + slope * values[j],)
        added += (sums[W] + slope,)
        sums = added
    share = shares + stretch.to(tl.int64) * (W + 1) * C + c
    for j in tl.static_range(W + 1):
        tl.store(share + j * C, tl.sum(sums[j], 0), c < C)


@triton.jit
def convolve_turned(
    weight, places, slopes, dx, tokens, T, C,
    W: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx [tokens, C]. x_t appears in the sum of its own token and in those of the W - 1 next tokens."""
    _, token, c = tile_of(C, BT, BC)
    _, _, left = places_of(token, tokens, T, places, PACKED)
    total = turned_at(slopes, weight, token, left, W - 1, c, C, W)
    where = dx + token.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(where, total.to(dx.dtype.element_ty), (token < tokens)[:, None] & (c < C)[None, :])


@triton.jit
def convolve_before_backward(
    weight, bounds, slopes, dbefore, rows, C, W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """dbefore [rows, W - 1, C]. `before` appears in the sums of the first W - 1 tokens. bounds [rows + 1]: offsets."""
    _, row, c = tile_of(C, BT, BC)
    inside = row < rows
    token = tl.load(bounds + row, inside, 0)
    left = tl.load(bounds + row + 1, inside, 0) - token
    for i in tl.static_range(W - 1):
        total = turned_at(slopes, weight, token, left, i, c, C, W)
        where = dbefore + (row * (W - 1) + i).to(tl.int64)[:, None] * C + c[None, :]
        tl.store(where, total.to(dbefore.dtype.element_ty), inside[:, None] & (c < C)[None, :])


def _places(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[T, 3] for packed tokens: sequence, position in it, tokens left in it. Not packed: x, which no kernel reads."""
    if cu_seqlens is None:
        return x
    T, bounds = x.shape[1], token_bounds(x, cu_seqlens)
    sequence, token = sequence_of(bounds, T), torch.arange(T, device=x.device)
    return torch.stack((sequence, token - bounds[sequence], bounds[sequence + 1] - token), 1)


def _inputs(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor) -> list[Tensor]:
    """[x, weight, bias, before], contiguous. Without a bias, weight takes its place and no kernel reads it."""
    return [y.contiguous() for y in (x, weight, weight if bias is None else bias, before)]


def _tile() -> dict[str, int]:
    return {"BT": TOKENS, "BC": CHANNELS, "num_warps": WARPS}


def _grid(count: int, C: int) -> tuple[int]:
    return (parts(count, TOKENS) * parts(C, CHANNELS),)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """y [B, T, C] from x [B, T, C], weight [C, W], bias [C], before [rows, W - 1, C], cu_seqlens [rows + 1] or None."""
    y = empty(x)
    if x.numel() == 0:
        return y
    (B, T, C), W = x.shape, weight.shape[1]
    packed = cu_seqlens is not None
    with torch.cuda.device_of(x):
        convolve_forward[_grid(B * T, C)](
            *_inputs(x, weight, bias, before), _places(x, cu_seqlens), y, B * T, T, C,
            W=W, BIAS=bias is not None, PACKED=packed, **_tile(),
        )  # fmt: skip
    return y


def _convolve_fake(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return empty(x)


def _convolve_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    before: Tensor,
    cu_seqlens: Tensor | None,
    dy: Tensor,
    to_before: bool,
) -> list[Tensor]:
    """Gradients of x, weight, bias and before. An empty tensor stands for a missing bias, or without `to_before`."""
    none = weight.new_empty(0)
    if x.numel() == 0:
        inputs = (x, weight, bias, before if to_before else None)
        return [none if y is None else torch.zeros_like(y, memory_format=torch.contiguous_format) for y in inputs]
    (B, T, C), W = x.shape, weight.shape[1]
    packed, places, grid = cu_seqlens is not None, _places(x, cu_seqlens), _grid(B * T, C)
    tensors = _inputs(x, weight, bias, before)
    slopes, dx = (empty(x) for _ in range(2))
    dbefore = before.new_empty(before.shape if to_before else (0,))
    BT, BC, warps = SLOPES
    stretches = parts(B * T, BT * TILES)
    shares = x.new_empty(stretches, W + 1, C, dtype=torch.float32)
    with torch.cuda.device_of(x):
        convolve_slopes[(stretches * parts(C, BC),)](
            *tensors, places, dy.contiguous(), slopes, shares, B * T, T, C,
            W=W, BIAS=bias is not None, PACKED=packed, BT=BT, BC=BC, TILES=TILES, num_warps=warps,
        )  # fmt: skip
        convolve_turned[grid](tensors[1], places, slopes, dx, B * T, T, C, W=W, PACKED=packed, **_tile())
        if dbefore.numel():
            convolve_before_backward[_grid(len(before), C)](
                tensors[1], token_bounds(x, cu_seqlens), slopes, dbefore, len(before), C, W=W, **_tile()
            )
    total = shares.sum(0)
    dbias = none if bias is None else total[W].to(bias.dtype)
    return [dx, total[:W].T.contiguous().to(weight.dtype), dbias, dbefore]


def _convolve_backward_fake(x, weight, bias, before, cu_seqlens, dy, to_before):  # type: ignore[no-untyped-def]
    none = weight.new_empty(0)
    inputs = (x, weight, none if bias is None else bias, before if to_before else none)
    return [empty(y) for y in inputs]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy):  # type: ignore[no-untyped-def]
    x, weight, bias, before, cu_seqlens = ctx.saved_tensors
    if torch.is_grad_enabled():  # double backward: the PyTorch form is differentiable
        form = partial(_plain, cu_seqlens=cu_seqlens, dtype=dy.dtype)
        return *plain_gradients(form, (x, weight, bias, before), dy), None
    wanted = ctx.needs_input_grad[3]
    dx, dweight, dbias, dbefore = convolve_backward_triton(x, weight, bias, before, cu_seqlens, dy, wanted)
    return dx, dweight, None if bias is None else dbias, dbefore if wanted else None, None


def _plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor, cu_seqlens: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The PyTorch form in the wider dtype of x and weight, converted to `dtype`."""
    wide = torch.promote_types(x.dtype, weight.dtype)
    bias = None if bias is None else bias.to(wide)
    return plain(x.to(wide), weight.to(wide), bias, before, cu_seqlens).to(dtype)


convolve = operator("convolve", _convolve, _convolve_fake, _backward, _setup_context)
convolve_backward_triton = operator(
    "convolve_backward", _convolve_backward, _convolve_backward_fake, refuse_double_backward("triton")
)
