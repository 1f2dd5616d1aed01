"""What the launchers share: a call's sizes, precision and plan, and how a kernel is launched or only compiled."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.backends import triton_interpreted
from varla.ops.triton.plan import CHUNK, Plan, parts, span_length, spans_needed
from varla.ops.triton.tiles import running_sum

# Bytes in a row of the tiles of `prepare` and `read`, at the least. In shared memory a row of so many bytes or more has
# one layout, narrower ones others; and where operands of different layouts follow each other at the same address, the
# assembler that comes with Triton 3.6 (ptxas 12.8) makes descriptors of them from a register that nothing has written:
# wrong results, or an illegal memory access. ptxas 12.9 does not. tests/ops/triton/registers.py looks for it.
EVEN_BYTES = 128

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
    even: int  # numbers in a row of EVEN_BYTES
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
            even=EVEN_BYTES // buffer.itemsize if hopper else 1,
            half=half,
            stages=2 if half else 1,
            scanning=3 if half else 1,
            registers=128 if half else None,
            most=None if hopper else 255,
        )  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """Type of the buffers between kernels, and what operands of products are rounded to (tiles.dot)."""

    buffer: torch.dtype
    dot: str  # the S part
    times: str  # A_t x_t
    walk: str  # A's own recurrence: its errors add up over a sequence

    @cached_property
    def exact(self) -> bool:
        """Whether products with the inputs themselves, in bfloat16, lose nothing."""
        return self.dot == "bf16"

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, dtype: torch.dtype, D: int, interpreted: bool | None = None) -> "Precision":
        """For inputs of the given type and keys of width D. Triton's interpreter knows no bfloat16 products."""
        full = D < NARROW or (triton_interpreted() if interpreted is None else interpreted)
        if dtype == torch.bfloat16 and not full:
            return cls(dtype, "bf16", "bf16x3", "bf16x3")
        if dtype == torch.float16 and not full:
            return cls(torch.float32, "tf32", "tf32x3", "tf32x3")
        return cls(torch.float32, "tf32x3", "tf32x3", "tf32x3")


_captured: list[Plan] = []


@dataclass(frozen=True)
class Launcher:
    """One call's constants: its plan, shapes and precision. With `dry`, kernels are compiled into it and none runs."""

    plan: Plan
    shape: Shape
    precision: Precision
    dry: list[Any] | None = field(default=None, kw_only=True)

    def hold(self) -> None:
        """Keep the plan's tables for ever if a CUDA graph is being captured: it holds their addresses."""
        if self.plan.chunks.is_cuda and torch.cuda.is_current_stream_capturing():
            _captured.append(self.plan)

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel, or compile it."""
        options["maxnreg"] = options.get("maxnreg") or self.shape.most
        if self.dry is None:
            kernel[grid](*arguments, **options)
        else:
            self.dry.append(kernel.warmup(*arguments, grid=grid, **options))

    def running_sum(self, x: Tensor, initial: Tensor, total: Tensor, first: Tensor, reverse: bool) -> None:
        """Over the spans or chunks of each sequence, as `first` says: see the kernel."""
        s, size = self.shape, initial[0, 0].numel()
        self.launch(
            running_sum, (len(self.plan.whole) * s.H, parts(size, 128)),
            x, initial, total, first, s.H, size, REVERSE=reverse, ENTRIES=16, BLOCK=128, num_warps=4,
        )  # fmt: skip


def parts_needed(B: int, T: int, H: int, sequences: int, packed: bool) -> tuple[int, int]:
    """Upper bounds, from shapes alone, on the chunks and on the spans of [B, T, H, *]; exact when nothing is packed."""
    chunks = T // CHUNK + sequences if packed else B * parts(T, CHUNK)
    return chunks, spans_needed(sequences, B * T, span_length(B * T, H), packed)


known_parts = lru_cache(maxsize=256)(parts_needed)  # for sizes that are numbers, which torch.compile's need not be


def capability_of(device: torch.device) -> int:
    """The GPU's major compute capability; 9 for Triton's interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9


def flat(x: Tensor) -> Tensor:
    """[B, T, H, *] as contiguous [tokens, H, *]."""
    return x.flatten(0, 1).contiguous()
