"""Registers the kernels of a launcher with PyTorch: how a call finds its launcher, and which kernels it compiles."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.checks import GATES
from varla.ops.custom_op import Arguments, StateOperator, present
from varla.ops.packing import sequence_bounds
from varla.ops.state import DIMENSIONS
from varla.ops.triton.launcher import Launcher, Precision, Shape, capability_of, known_parts, parts_needed
from varla.ops.triton.plan import Plan, make_plan
from varla.ops.triton.precompile import precompile

_captured: list[Plan] = []


class KernelOperator(StateOperator):
    """The kernels of an operator."""

    def __init__(self, name: str, kind: type[Launcher], *settings: type[Any]) -> None:
        """Register the operator and its backward."""
        self.kind = kind
        super().__init__(name, "triton", kind.inputs, kind.state, kind.output_like, settings)

    def run(self, *arguments: Any) -> list[Tensor]:
        """See StateOperator."""
        call, state, keep = self.split(arguments)
        first, like = call.inputs[0], call.inputs[self.output_like]
        given = tuple(x is not None for x in call.inputs)
        packed = call.cu_seqlens is not None
        chunks, spans = known_parts(self.kind, first.shape, given, tuple(call.settings), len(call.t), packed)
        kept = self.kind.buffers(call.inputs, chunks, spans, *call.settings)
        extra = kept if keep else []
        if first.numel() == 0:
            return [torch.empty_like(like), *(x.clone() for x in present(state)), *extra]
        with torch.cuda.device_of(first):
            tokens = [(first if x is None else x).flatten(0, 1).contiguous() for x in call.inputs]
            launcher = self._launcher(call, given, keep)
            o, *final = launcher.run(tokens, [None if x is None else x.contiguous() for x in state], call.t, kept)
        return [o.to(like.dtype).view(like.shape), *final, *extra]

    def run_backward(
        self, call: Arguments, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See StateOperator."""
        first = call.inputs[0]
        if first.numel() == 0:
            return [None if x is None else torch.zeros_like(x) for x in call.inputs], [x.clone() for x in dfinal]
        with torch.cuda.device_of(first):
            *tokens, do = ((first if x is None else x).flatten(0, 1).contiguous() for x in (*call.inputs, do))
            launcher = self._launcher(call, tuple(x is not None for x in call.inputs), True)
            grads, dstate = launcher.run_backward(tokens, call.t, kept, do, [x.contiguous() for x in dfinal])
        pairs = zip(grads, call.inputs, strict=True)
        return [None if x is None else grad.to(x.dtype).view(x.shape) for grad, x in pairs], dstate

    def buffers(self, call: Arguments, state: Sequence[Any]) -> list[Tensor]:
        """See StateOperator."""
        given, packed = tuple(x is not None for x in call.inputs), call.cu_seqlens is not None
        size, settings = call.inputs[0].shape, tuple(call.settings)
        chunks, spans = parts_needed(self.kind, size, given, settings, call.t.shape[0], packed)
        return self.kind.buffers(call.inputs, chunks, spans, *call.settings)

    def also_kept(self, state: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor]:
        """See StateOperator."""
        return self.kind.also_kept(state, results)

    def _launcher(self, call: Arguments, given: tuple[bool, ...], backward: bool) -> Launcher:
        """The launcher for a call with these inputs, with compiled kernels."""
        first, like = call.inputs[0], call.inputs[self.output_like]
        B, T, H, D = first.shape
        lengths = (T,) * B if call.cu_seqlens is None else tuple(sequence_bounds(call.cu_seqlens, T)[1])
        sizes = H, D, like.shape[-1]
        found = launcher_for(
            self.kind, lengths, sizes, given, first.dtype, first.device, tuple(call.settings), backward
        )
        if first.is_cuda and torch.cuda.is_current_stream_capturing():
            _captured.append(found.plan)  # for ever: the graph holds the addresses of the plan's tables
        return found


@lru_cache(maxsize=64)
def launcher_for(
    kind: type[Launcher],
    lengths: tuple[int, ...],
    sizes: tuple[int, int, int],
    given: tuple[bool, ...],
    dtype: torch.dtype,
    device: torch.device,
    settings: tuple[Any, ...],
    backward: bool,
) -> Launcher:
    """The launcher for sequences of these lengths and sizes (H, D, DV), with compiled kernels.

    `given` says which of the inputs there are.
    """
    H, D, DV = sizes
    precision = Precision.of(dtype, D)
    shape = Shape.of(H, D, DV, precision.buffer, capability_of(device))
    optional = frozenset(name.rstrip("?") for name, here in zip(kind.inputs.split(), given, strict=True) if here)
    span, gradient_span = kind.spans(sum(lengths), H, given, *settings)
    plan = make_plan(lengths, span, device, gradient_span)
    found = kind(plan, shape, precision, *settings, given=optional)

    def call(tokens: int, plan: Plan, started: list[Any]) -> None:
        rehearse(replace(found, plan=plan, dry=started), settings, given, tokens, dtype, device, backward)

    if device.type == "cuda":
        precompile((kind, shape, precision, found.constants, given, dtype, device), call, H, device, backward)
    return found


def rehearse(
    launcher: Launcher,
    settings: Sequence[Any],
    given: Sequence[bool],
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    backward: bool,
) -> None:
    """Run a call on `tokens` tokens, and its backward, for a `dry` launcher that only compiles the kernels."""
    shape, plan = launcher.shape, launcher.plan
    sizes = {"B": len(plan.sequences), "H": shape.H, "D": shape.D, "Dv": shape.DV}
    widths = {"v": shape.DV, **dict.fromkeys(GATES, 1)}
    last = [widths.get(name.rstrip("?"), shape.D) for name in launcher.inputs.split()]
    tensors = [torch.empty(1, tokens, shape.H, width, dtype=dtype, device=device) for width in last]
    inputs = [x if here else None for x, here in zip(tensors, given, strict=True)]
    state = [
        None if name == "f?" and "forget" not in launcher.given
        else torch.empty([sizes[letter] for letter in DIMENSIONS[name.rstrip("?")].split()], device=device)
        for name in launcher.state.split()
    ]  # fmt: skip
    t = torch.empty(len(plan.sequences), dtype=torch.int64, device=device)
    kept = launcher.buffers(inputs, len(plan.chunks), len(plan.spans), *settings)
    x = [each[0] for each in tensors]
    results = launcher.run(x, state, t, kept)
    if backward:
        o, *final = results
        launcher.run_backward(x, t, [*kept, *launcher.also_kept(state, results)], o.to(dtype), final)
