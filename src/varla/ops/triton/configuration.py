"""What a call is made of: its sizes and tiles, its precision, and the tensors that pass between kernels."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from varla.ops.triton.penalty import STEP
from varla.ops.triton.plan import CHUNK

# Bytes in a row of the tiles of `prepare` and `read`, at the least. In shared memory a row of so many bytes or more has
# one layout, narrower ones others; and where operands of different layouts follow each other at the same address, the
# assembler that comes with Triton 3.6 (ptxas 12.8) makes descriptors of them from a register that nothing has written:
# wrong results, or an illegal memory access. ptxas 12.9 does not. tests/ops/triton/registers.py looks for it.
EVEN = 128

# Keys narrower than this have products and buffers in full precision whatever the inputs are. A chunk overwrites so
# small a memory several times: what it leaves of the gradient of S is a small difference. A tile is no wider for it.
NARROW = 16


@dataclass(frozen=True)
class Shape:
    """Sizes of a call, padded as tiles must be, and how many warps work on one."""

    H: int
    D: int
    DV: int
    BD: int
    BV: int  # values in a tile
    wide: int  # in a tile of `read`
    narrow: tuple[int, int]  # in a tile of the scans, whose rows are independent: where heads are few, and where many
    warps: int  # where a D x D tile, or several of tokens, is in registers
    finishing: int  # warps of what ends a backward
    even: int  # numbers in a row of so many bytes as EVEN says
    half: bool  # buffers are bfloat16
    stages: int  # of loads under way, bounded by shared memory
    scanning: int  # the same, of the scans
    registers: int | None  # a thread may have, where many programs at a time beat few that never spill
    most: int | None  # and anywhere: for Ampere, ptxas settles for 32 where it finds no allocation it likes

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, H: int, D: int, DV: int, buffer: torch.dtype, capability: int = 9) -> "Shape":
        """The configuration for a shape, and a GPU of this compute capability: one choice, no tuning."""
        half, hopper = buffer == torch.bfloat16, capability >= 9

        def tile(size: int) -> int:
            return max(16, 1 << (size - 1).bit_length())

        BD = tile(D)
        BV = tile(min(DV, 64 if half or D <= 64 else 32))
        return cls(
            H, D, DV, BD, BV,
            wide=tile(min(DV, 128 if half else 32)),
            narrow=(16, BV if half and BD == 128 else min(BV, 32)),
            warps=8 if BD == 128 else 4,
            finishing=4 if hopper or BD < 128 else 8,
            even=EVEN // buffer.itemsize if hopper else 1,
            half=half,
            stages=2 if half else 1,
            scanning=3 if half else 1,
            registers=128 if half else None,
            most=None if hopper else 255,
        )  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """Type of the buffers between kernels, and what operands of products are rounded to (pieces.dot)."""

    buffer: torch.dtype
    dot: str  # the S part
    times: str  # A_t x_t
    walk: str  # A's own recurrence: its errors add up over a sequence

    @property
    def exact(self) -> bool:
        """Whether products with the inputs themselves, in bfloat16, lose nothing."""
        return self.dot == "bf16"

    @classmethod
    def of(cls, dtype: torch.dtype, D: int, interpreted: bool) -> "Precision":
        """For inputs of the given type and keys of width D. Triton's interpreter knows no bfloat16 products."""
        full = interpreted or D < NARROW
        if dtype == torch.bfloat16 and not full:
            return cls(dtype, "bf16", "bf16x3", "bf16x3")
        if dtype == torch.float16 and not full:
            return cls(torch.float32, "tf32", "tf32x3", "tf32x3")
        return cls(torch.float32, "tf32x3", "tf32x3", "tf32x3")


class Inputs(NamedTuple):
    """Tokens [tokens, H, *], contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor

    @classmethod
    def empty(cls, tokens: int, shape: Shape, dtype: torch.dtype, device: torch.device) -> "Inputs":
        """Of so many tokens, whatever is in them."""
        sizes = (shape.D, shape.D, shape.DV, shape.D)
        return cls(*(torch.empty(tokens, shape.H, size, dtype=dtype, device=device) for size in sizes))


class State(NamedTuple):
    """S [N, H, DV, D], A [N, H, D, D], z [N, H, D], float32, and t [N]: tokens seen."""

    S: Tensor
    A: Tensor
    z: Tensor
    t: Tensor

    @classmethod
    def empty(cls, N: int, shape: Shape, device: torch.device) -> "State":
        """Of N sequences, whatever is in it."""
        sizes = ((N, shape.H, shape.DV, shape.D), (N, shape.H, shape.D, shape.D), (N, shape.H, shape.D))
        S, A, z = (torch.empty(size, device=device) for size in sizes)
        return cls(S, A, z, torch.empty(N, dtype=torch.int64, device=device))


class Kept(NamedTuple):
    """What the backward needs of the forward: a [tokens, H, D]; norm, gain, denominator [tokens, H]; and the rest.

    S0 and E could be made again, for a tenth of a training step's time; they are the larger half of what is kept.
    """

    a: Tensor
    norm: Tensor  # of the keys' features: 1 / |F|
    gain: Tensor
    denominator: Tensor
    tinv: Tensor  # [chunks, H, 64, 64]
    W: Tensor  # likewise
    E: Tensor  # [tokens, H, DV]: what is written along a
    S0: Tensor  # [chunks, H, DV, D]: S before every chunk
    z0: Tensor  # [chunks, H, D]: z likewise
    A: Tensor  # [spans, H, D, D]
    J: Tensor  # [tokens, H, 16]: L^-1 of every step of the walk

    @classmethod
    def empty(cls, q: Tensor, DV: int, chunks: int, spans: int, buffer: torch.dtype) -> "Kept":
        """Room for it, for q [tokens, H, D] and values of DV numbers."""
        tokens, H, D = q.shape
        return cls(
            a=q.new_empty(tokens, H, D, dtype=buffer),
            norm=q.new_empty(tokens, H, dtype=torch.float32),
            gain=q.new_empty(tokens, H, dtype=torch.float32),
            denominator=q.new_empty(tokens, H, dtype=torch.float32),
            tinv=q.new_empty(chunks, H, CHUNK, CHUNK, dtype=buffer),
            W=q.new_empty(chunks, H, CHUNK, CHUNK, dtype=buffer),
            E=q.new_empty(tokens, H, DV, dtype=buffer),
            S0=q.new_empty(chunks, H, DV, D, dtype=buffer),
            z0=q.new_empty(chunks, H, D, dtype=torch.float32),
            A=q.new_empty(spans, H, D, D, dtype=torch.float32),
            J=q.new_empty(tokens, H, STEP.value, dtype=torch.float32),
        )
