"""silu(g) * x as one kernel forward and one backward; see varla/ops/gate.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.custom_op import empty, kernel_operator
from varla.ops.gate import plain
from varla.ops.triton.plan import parts

ELEMENTS, WARPS = 2048, 8  # of a program


@triton.jit
def gate_forward(g, x, y, count, BLOCK: tl.constexpr):
    """y [count]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    G, X = tl.load(g + at, at < count, 0.0).to(tl.float32), tl.load(x + at, at < count, 0.0).to(tl.float32)
    tl.store(y + at, (G * tl.sigmoid(G) * X).to(y.dtype.element_ty), at < count)


@triton.jit
def gate_backward(g, x, dy, dg, dx, count, BLOCK: tl.constexpr):
    """dg and dx [count]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    G, X = tl.load(g + at, at < count, 0.0).to(tl.float32), tl.load(x + at, at < count, 0.0).to(tl.float32)
    dY = tl.load(dy + at, at < count, 0.0).to(tl.float32)
    s = tl.sigmoid(G)
    tl.store(dg + at, (dY * X * s * (1 + G * (1 - s))).to(dg.dtype.element_ty), at < count)
    tl.store(dx + at, (dY * G * s).to(dx.dtype.element_ty), at < count)


def _gate(g: Tensor, x: Tensor) -> Tensor:
    """y [*] from g and x [*], all of one dtype."""
    if g.shape != x.shape or g.dtype != x.dtype:
        raise ValueError(
            f"g and x must have one shape and dtype, got {list(g.shape)} {g.dtype} and {list(x.shape)} {x.dtype}"
        )
    y = empty(g)
    if g.numel():
        with torch.cuda.device_of(g):
            gate_forward[(parts(g.numel(), ELEMENTS),)](
                g.contiguous(), x.contiguous(), y, g.numel(), BLOCK=ELEMENTS, num_warps=WARPS
            )
    return y


def _gate_fake(g: Tensor, x: Tensor) -> Tensor:
    return empty(g)


def _gate_backward(g: Tensor, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Gradients of g and x."""
    dg, dx = empty(g), empty(x)
    if g.numel():
        with torch.cuda.device_of(g):
            gate_backward[(parts(g.numel(), ELEMENTS),)](
                g.contiguous(), x.contiguous(), dy.contiguous(), dg, dx, g.numel(), BLOCK=ELEMENTS, num_warps=WARPS
            )
    return [dg, dx]


gate = kernel_operator("gate", _gate, _gate_fake, _gate_backward, plain, 2)
