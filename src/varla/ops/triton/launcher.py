"""What the launchers share: sizes, precision and plan of a call, and how a kernel is launched or only compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from varla.ops.backends import triton_interpreted
from varla.ops.triton.plan import CHUNK, GRADIENT_SPAN, Plan, parts, span_length, spans_needed
from varla.ops.triton.tiles import running_sum

# Smallest row, in bytes, of the tiles of `prepare` and `read`. It avoids a bug of ptxas 12.8, which comes with Triton
# 3.6. In shared memory, rows of this size or more have one layout; shorter rows have others. If operands of different
# layouts use the same address one after the other, ptxas builds a descriptor from an uninitialised register, or both
# halves from one: results are wrong, or a memory access is illegal. ptxas 12.9 does not. tests/ops/triton/registers.py
# checks for this bug.
MIN_ROW_BYTES = 128

# For keys narrower than this, products and buffers are in full precision for all inputs. A chunk overwrites a memory
# this small several times, so the gradient of S is a small difference of large terms. Tiles have this width anyway.
NARROW_KEY = 16


@dataclass(frozen=True)
class Shape:
    """Sizes of a call, padded to the sizes of tiles, and the launch parameters that follow from them."""

    H: int
    D: int
    DV: int
    BD: int  # keys in a tile: D, padded
    BV: int  # values in a tile
    read_values: int  # values in a tile of `read`
    scan_values: tuple[int, int]  # values in a tile of the scans: with few heads, and with many
    warps: int  # of kernels that hold a D x D tile, or several tiles of tokens, in registers
    finish_warps: int  # of the last kernels of a backward
    min_row: int  # elements in a row of MIN_ROW_BYTES
    half: bool  # buffers are bfloat16
    stages: int  # pipeline stages of loads; shared memory limits them
    scan_stages: int  # the same for the scans
    registers: int | None  # limit per thread, for kernels that gain more from occupancy than from not spilling
    decay_warps: int  # of `unread` with decays
    max_registers: int | None  # limit for all other kernels. Without one, ptxas for Ampere may settle for 32

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, H: int, D: int, DV: int, buffer: torch.dtype, capability: int = 9) -> "Shape":
        """The configuration for these sizes on a GPU of this compute capability. It is fixed; nothing is autotuned."""
        half, hopper = buffer == torch.bfloat16, capability >= 9

        def tile(size: int) -> int:
            return max(16, 1 << (size - 1).bit_length())

        BD = tile(D)
        BV = tile(min(DV, 64 if half or D <= 64 else 32))
        return cls(
            H, D, DV, BD, BV,
            read_values=tile(min(DV, 128 if half else 32)),
            scan_values=(16, BV if half and BD == 128 else min(BV, 32)),
            warps=8 if BD == 128 else 4,
            finish_warps=4 if hopper or BD < 128 else 8,
            min_row=MIN_ROW_BYTES // buffer.itemsize if hopper else 1,
            half=half,
            stages=2 if half else 1,
            scan_stages=3 if half else 1,
            registers=128 if half else None,
            decay_warps=4 if half and (hopper or BD < 128) else 8,
            max_registers=None if hopper else 255,
        )  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """Dtype of the buffers between kernels, and what operands of products are rounded to (algebra.dot)."""

    buffer: torch.dtype
    dot: str  # products of `memory`
    times: str  # products A_t x_t
    walk: str  # the recurrence of A, whose errors accumulate over a sequence

    @cached_property
    def exact(self) -> bool:
        """Whether the inputs are bfloat16, so that rounding them for a product loses nothing."""
        return self.dot == "bf16"

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, dtype: torch.dtype, D: int, interpreted: bool | None = None) -> "Precision":
        """For inputs of the given dtype and keys of width D. Triton's interpreter has no bfloat16 products."""
        full = D < NARROW_KEY or (triton_interpreted() if interpreted is None else interpreted)
        if dtype == torch.bfloat16 and not full:
            return cls(dtype, "bf16", "bf16x3", "bf16x3")
        if dtype == torch.float16 and not full:
            return cls(torch.float32, "tf32", "tf32x3", "tf32x3")
        return cls(torch.float32, "tf32x3", "tf32x3", "tf32x3")


@dataclass(frozen=True)
class Launcher:
    """Plan, shape and precision of a call. With `dry`, kernels are compiled into this list and do not run.

    A subclass launches the kernels of one operator, and adds its settings as fields. `inputs`, `state` and
    `output_like` are as for custom_op.StateOperator. The one optional part of a state is f, which is there with the
    input forget.
    """

    inputs: ClassVar[str]
    state: ClassVar[str]
    output_like: ClassVar[int]

    plan: Plan
    shape: Shape
    precision: Precision
    given: frozenset[str] = field(default=frozenset(), kw_only=True)  # the optional inputs that there are
    dry: list[Any] | None = field(default=None, kw_only=True)

    @property
    def constants(self) -> tuple[Any, ...]:
        """The settings that kernels are compiled for. Numbers among the settings are run-time arguments."""
        raise NotImplementedError

    @classmethod
    def spans(cls, tokens: int, heads: int, given: Sequence[bool], *settings: Any) -> tuple[int, int]:
        """Tokens in a span, and in a span of the gradient, of a call with `tokens` tokens and these inputs."""
        return span_length(tokens, heads), GRADIENT_SPAN

    @staticmethod
    def buffers(inputs: Sequence[Any], chunks: int, spans: int, *settings: Any) -> list[Tensor]:
        """Empty tensors for what the forward keeps, for inputs [B, T, H, *] in this many chunks and spans."""
        raise NotImplementedError

    @staticmethod
    def also_kept(state: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor]:
        """What the backward reads beside the buffers: tensors of the initial state, and results of `run`."""
        return []

    def run(self, x: Sequence[Any], state: Sequence[Any], t: Tensor, kept: list[Tensor]) -> Sequence[Tensor]:
        """(outputs, *final state) from contiguous inputs x [tokens, H, *] and state; fills the buffers `kept`.

        Another tensor takes the place of an optional input that is not given, and no kernel reads it there.
        """
        raise NotImplementedError

    def run_backward(
        self, x: Sequence[Any], t: Tensor, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """(gradients of the inputs, of the initial state)."""
        raise NotImplementedError

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel; with `dry`, only compile it."""
        options["maxnreg"] = options.get("maxnreg") or self.shape.max_registers
        if self.dry is None:
            kernel[grid](*arguments, **options)
        else:
            self.dry.append(kernel.warmup(*arguments, grid=grid, **options))

    def running_sum(self, x: Tensor, initial: Tensor, total: Tensor, first: Tensor, reverse: bool) -> None:
        """`tiles.running_sum` over the spans or chunks of each sequence, which begin at `first`."""
        s, size = self.shape, initial[0, 0].numel()
        self.launch(
            running_sum, (len(self.plan.sequences) * s.H, parts(size, 128)),
            x, initial, total, first, s.H, size, REVERSE=reverse, ENTRIES=16, BLOCK=128, num_warps=4,
        )  # fmt: skip


def parts_needed(
    kind: type[Launcher], size: Sequence[int], given: tuple[bool, ...], settings: tuple[Any, ...], sequences: int,
    packed: bool,
) -> tuple[int, int]:  # fmt: skip
    """Upper bounds, from shapes alone, on (chunks, spans) of `size` [B, T, H, *]. Exact if nothing is packed."""
    B, T, H = size[:3]
    chunks = T // CHUNK + sequences if packed else B * parts(T, CHUNK)
    return chunks, spans_needed(sequences, B * T, kind.spans(B * T, H, given, *settings)[0], packed)


known_parts = lru_cache(maxsize=256)(parts_needed)  # for integer sizes; under torch.compile they may be symbolic


def capability_of(device: torch.device) -> int:
    """The GPU's major compute capability; 9 for Triton's interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
