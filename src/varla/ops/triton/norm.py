"""The RMS norm as one kernel forward and one backward; see varla/ops/norm.py.

A program holds whole rows of x, so it reads each element once. The backward recomputes the length of a row instead of
saving it. There a program goes through several tiles and writes one share of the weight's gradient; PyTorch sums the
shares. PyTorch's own backward reads x and dy twice, and needs both in one dtype.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.custom_op import empty, kernel_operator
from varla.ops.norm import plain
from varla.ops.triton.plan import parts

ELEMENTS, WARPS = 1024, 2  # of a tile; larger tiles make the backward slower (benchmarks/RESULTS.md)
TILES = 8  # tiles per program in the backward


@triton.jit
def row_tile(first, rows, N, BR: tl.constexpr, BN: tl.constexpr):
    """(offsets in [rows, N] of the BR rows from `first` on, which elements exist), both [BR, BN]."""
    row, c = first + tl.arange(0, BR), tl.arange(0, BN)
    return row.to(tl.int64)[:, None] * N + c[None, :], (row < rows)[:, None] & (c < N)[None, :]


@triton.jit
def normalized(x, where, inside, N, eps):
    """(x over its root mean square [BR, BN], the inverse of that root mean square [BR, 1])."""
    X = tl.load(x + where, inside, 0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(X * X, 1, keep_dims=True) / N + eps)
    return X * inverse, inverse


@triton.jit
def norm_forward(x, weight, y, rows, N, eps, BR: tl.constexpr, BN: tl.constexpr):
    """y [rows, N]."""
    where, inside = row_tile(tl.program_id(0) * BR, rows, N, BR, BN)
    c = tl.arange(0, BN)
    w = tl.load(weight + c, c < N, 0.0).to(tl.float32)
    X, _ = normalized(x, where, inside, N, eps)
    tl.store(y + where, (X * w[None, :]).to(y.dtype.element_ty), inside)


@triton.jit
def norm_backward(x, weight, dy, dx, shares, rows, N, eps, BR: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr):
    """dx [rows, N], and shares [programs, N] of the weight's gradient."""
    program, c = tl.program_id(0), tl.arange(0, BN)
    w = tl.load(weight + c, c < N, 0.0).to(tl.float32)
    share = tl.zeros([BN], tl.float32)
    for i in range(TILES):
        where, inside = row_tile((program * TILES + i) * BR, rows, N, BR, BN)
        X, inverse = normalized(x, where, inside, N, eps)
        G = tl.load(dy + where, inside, 0.0).to(tl.float32)
        share += tl.sum(tl.where(inside, G * X, 0.0), 0)  # with eps = 0, X is 0 / 0 beyond the last row
        G *= w[None, :]
        along = tl.sum(G * X, 1, keep_dims=True) / N
        tl.store(dx + where, ((G - X * along) * inverse).to(dx.dtype.element_ty), inside)
    tl.store(shares + program.to(tl.int64) * N + c, share, c < N)


def _tile(N: int) -> dict[str, int]:
    width = triton.next_power_of_2(N)
    return {"BR": max(1, ELEMENTS // width), "BN": width, "num_warps": max(WARPS, min(16, width // 512))}


def _normalize(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """y [*, N] in this dtype, from x [*, N] and weight [N]."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must have shape [{x.shape[-1]}], as wide as x, got {list(weight.shape)}")
    y = empty(x, dtype)
    if x.numel() == 0:
        return y
    N = x.shape[-1]
    rows, tile = x.numel() // N, _tile(N)
    with torch.cuda.device_of(x):
        norm_forward[(parts(rows, tile["BR"]),)](x.contiguous(), weight.contiguous(), y, rows, N, eps, **tile)
    return y


def _normalize_fake(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return empty(x, dtype)


def _normalize_backward(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, dy: Tensor) -> list[Tensor]:
    """Gradients of x and weight."""
    if x.numel() == 0:
        return [torch.zeros_like(x), torch.zeros_like(weight)]
    dx = empty(x)
    N = x.shape[-1]
    rows, tile = x.numel() // N, _tile(N)
    programs = parts(rows, tile["BR"] * TILES)
    shares = x.new_empty(programs, N, dtype=torch.float32)
    with torch.cuda.device_of(x):
        norm_backward[(programs,)](
            x.contiguous(), weight.contiguous(), dy.contiguous(), dx, shares, rows, N, eps, TILES=TILES, **tile
        )
    return [dx, shares.sum(0).to(weight.dtype)]


normalize = kernel_operator("normalize", _normalize, _normalize_fake, _normalize_backward, plain, 2)
