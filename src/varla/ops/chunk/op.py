"""Registers the chunk form of an operator with PyTorch: opaque to torch.compile, with a hand-written backward."""

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.chunk import driver
from varla.ops.chunk.plan import SEGMENT_TOKENS, SEGMENT_TOKENS_GPU, make_plan, slots_needed
from varla.ops.custom_op import operator, refuse_double_backward
from varla.ops.packing import sequence_bounds


class ChunkOperator:
    """torch.ops.varla.<name>: a cell (see driver.Cell) run over all tokens.

    `inputs` and `state` name the tensors; a question mark means that a tensor may be None. `settings` are the
    dataclasses that the cell's constructor takes. The backward returns gradients of all inputs and state tensors.
    """

    def __init__(self, name: str, cell: type[Any], inputs: str, state: str, *settings: type[Any]) -> None:
        """Register the operator and its backward."""
        self.inputs, self.state = inputs.split(), state.split()
        self.cell = lru_cache(maxsize=256)(cell)
        self.output_like: int = cell.output_like
        self.counts = len(self.inputs), len(self.state)
        scalars = {f"settings{i}": kind for i, kind in enumerate(settings)}
        tensors = {each.rstrip("?"): Tensor | None if each.endswith("?") else Tensor for each in self.inputs}
        held = {each.rstrip("?"): Tensor | None if each.endswith("?") else Tensor for each in self.state}
        shared = {"t": Tensor, "cu_seqlens": Tensor | None, **scalars, "chunk_size": int}
        many = Sequence[Tensor]
        self._backward = operator(
            f"{name}_backward",
            self._run_backward,
            self._fake_backward,
            refuse_double_backward("chunk"),
            signature=_signature({**tensors, **shared, "kept": many, "do": Tensor, "dfinal": many}),
        )
        self._forward = operator(
            name,
            self._run,
            self._fake,
            self._derive,
            self._setup_context,
            _signature({**tensors, **held, **shared, "keep": bool}),
        )

    def __call__(
        self,
        inputs: Sequence[Any],
        state: Sequence[Any],
        t: Tensor,
        cu_seqlens: Tensor | None,
        settings: Sequence[Any],
        chunk_size: int,
        keep: bool,
    ) -> tuple[Tensor, list[Any]]:
        """(outputs, final state). With `keep`, the operator also keeps what its backward needs."""
        o, *final = self._forward(*inputs, *state, t, cu_seqlens, *settings, chunk_size, keep)
        rest = iter(final)
        return o, [None if x is None else next(rest) for x in state]

    def _split(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        n, m = self.counts
        return arguments[:n], arguments[n : n + m], arguments[n + m :]

    def _run(self, *arguments: Any) -> list[Tensor]:
        """[outputs, *final state, *state before every chunk]; without `keep`, the last tensors are empty."""
        inputs, state, (t, cu_seqlens, *settings, chunk_size, keep) = self._split(arguments)
        with torch.autocast(t.device.type, enabled=False):  # products run in the state's precision
            job = self._job(inputs, t, cu_seqlens, settings, chunk_size)
            slots = _slots(inputs, t, cu_seqlens, chunk_size, keep)
            o, final, kept = driver.forward(job, inputs, _present(state), slots)
        return [o, *final, *kept]

    def _fake(self, *arguments: Any) -> list[Tensor]:
        inputs, state, (t, cu_seqlens, *_, chunk_size, keep) = self._split(arguments)
        slots = _slots(inputs, t, cu_seqlens, chunk_size, keep)
        held = _present(state)
        o = inputs[self.output_like]
        return [
            torch.empty_like(o, memory_format=torch.contiguous_format),
            *(torch.empty_like(x) for x in held),
            *(x.new_empty(slots, *x.shape[1:]) for x in held),
        ]

    def _run_backward(self, *arguments: Any) -> list[Tensor]:
        """[*gradients of the non-None inputs, *gradients of the initial state]."""
        inputs = arguments[: self.counts[0]]
        t, cu_seqlens, *settings, chunk_size, kept, do, dfinal = arguments[self.counts[0] :]
        with torch.autocast(t.device.type, enabled=False):
            job = self._job(inputs, t, cu_seqlens, settings, chunk_size)
            dinputs, dstate = driver.backward(job, inputs, kept, do, dfinal)
        return [*_present(dinputs), *dstate]

    def _fake_backward(self, *arguments: Any) -> list[Tensor]:
        inputs = _present(arguments[: self.counts[0]])
        return [
            *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs),
            *(torch.empty_like(x) for x in arguments[-1]),
        ]

    def _setup_context(self, ctx: Any, arguments: Sequence[Any], output: Sequence[Tensor]) -> None:
        inputs, state, (t, cu_seqlens, *settings, chunk_size, _) = self._split(arguments)
        held = len(_present(state))
        ctx.present = [x is not None for x in (*inputs, *state)]
        ctx.settings, ctx.chunk_size, ctx.held = settings, chunk_size, held
        ctx.save_for_backward(*inputs, t, cu_seqlens, *output[1 + held :])

    def _derive(self, ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
        n = self.counts[0]
        saved = ctx.saved_tensors
        inputs, t, cu_seqlens, kept = saved[:n], saved[n], saved[n + 1], saved[n + 2 :]
        dfinal = list(grads[1 : 1 + ctx.held])
        gradients = iter(
            self._backward(*inputs, t, cu_seqlens, *ctx.settings, ctx.chunk_size, list(kept), grads[0], dfinal)
        )
        rest = [None] * (4 + len(ctx.settings))  # t, cu_seqlens, settings, chunk_size, keep
        return *(next(gradients) if present else None for present in ctx.present), *rest

    def _job(
        self,
        inputs: Sequence[Any],
        t: Tensor,
        cu_seqlens: Tensor | None,
        settings: Sequence[Any],
        chunk_size: int,
    ) -> driver.Job:
        first: Tensor = inputs[0]
        B, T, H = first.shape[:3]
        if cu_seqlens is None:
            starts, lengths = [0] * B, [T] * B
        else:
            starts, lengths = sequence_bounds(cu_seqlens, T)
        segment = SEGMENT_TOKENS_GPU if first.is_cuda else SEGMENT_TOKENS
        plan = make_plan(starts, lengths, chunk_size, H, segment)
        return driver.Job(self.cell(*settings), plan, cu_seqlens is not None, t)


def _signature(types: dict[str, Any]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=hint) for name, hint in types.items()]
    return inspect.Signature(parameters, return_annotation=list[Tensor])


def _present(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _slots(inputs: Sequence[Any], t: Tensor, cu_seqlens: Tensor | None, chunk_size: int, keep: bool) -> int:
    first: Tensor = inputs[0]
    return slots_needed(t.shape[0], first.shape[1], chunk_size, cu_seqlens is not None) if keep else 0
