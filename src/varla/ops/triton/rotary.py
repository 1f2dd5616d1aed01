"""Rotary positions as one kernel; see varla/ops/rotary.py. The backward is the same kernel with opposite angles."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.custom_op import empty, operator
from varla.ops.triton.plan import parts

PAIRS, WARPS = 2048, 4  # of a program


@triton.jit
def rotate_rows(
    x, cos, sin, y, rows, H, angles, HALF, BACK: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr
):  # fmt: skip
    """y [rows, 2 HALF]; a row is one head of one token. cos, sin [angles, HALF]; token t uses row t % angles."""
    row, i = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BH)
    inside = (row < rows)[:, None] & (i < HALF)[None, :]
    where = row.to(tl.int64)[:, None] * (2 * HALF) + i[None, :]
    angle = ((row // H) % angles).to(tl.int64)[:, None] * HALF + i[None, :]
    c, s = tl.load(cos + angle, inside, 0.0), tl.load(sin + angle, inside, 0.0)
    if BACK:
        s = -s
    first = tl.load(x + where, inside, 0.0).to(tl.float32)
    second = tl.load(x + where + HALF, inside, 0.0).to(tl.float32)
    tl.store(y + where, (first * c - second * s).to(y.dtype.element_ty), inside)
    tl.store(y + where + HALF, (second * c + first * s).to(y.dtype.element_ty), inside)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    """Rotate x [B, T, H, D] by angles with these cos and sin, float32 [B or 1, T, D / 2]; backwards if `back`."""
    y = empty(x)
    if x.numel() == 0:
        return y
    half, width = cos.shape[-1], triton.next_power_of_2(cos.shape[-1])
    rows, tile = x.numel() // x.shape[-1], max(1, PAIRS // width)
    with torch.cuda.device_of(x):
        rotate_rows[(parts(rows, tile),)](
            x.contiguous(), cos.contiguous(), sin.contiguous(), y, rows, x.shape[2], cos.numel() // half, half,
            BACK=back, BR=tile, BH=width, num_warps=WARPS,
        )  # fmt: skip
    return y


def _turn_fake(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    return empty(x)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, cos, sin, ctx.back = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx, dy):  # type: ignore[no-untyped-def]
    return turn(dy, *ctx.saved_tensors, not ctx.back), None, None, None


turn = operator("turn", _turn, _turn_fake, _backward, _setup_context)
