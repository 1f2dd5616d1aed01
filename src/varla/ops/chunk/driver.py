"""Runs a cell over a plan: forward from the first segment to the last, backward from the last to the first.

States are [rows, H, *] for the user, and [N, *] with N = rows x H for a cell. Rows are sorted by descending length, so
the rows that continue always come first. A row that ends is removed from the end of the carried state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from varla.ops.chunk.plan import Block, Plan, Segment
from varla.ops.chunk.window import Window, table
from varla.ops.custom_op import empty


@dataclass(frozen=True)
class Refresh:
    """eta times the refreshes: before each token, up to and including it [M, n, 1], and in the whole chunk [M, 1]."""

    before: Tensor
    until: Tensor
    total: Tensor


@dataclass(frozen=True)
class Context:
    """What a cell knows of its window.

    valid [M, n, 1]: which tokens exist (None: all). refresh: the refreshes (None: no refresh). due [M, n, 1]: the
    tokens before which the prior is given back (None: there is no beat).
    """

    valid: Tensor | None
    refresh: Refresh | None
    due: Tensor | None = None


Inputs = Sequence[Any]  # tensors, or None for an optional input that was not given
Tensors = Sequence[Tensor]


class Cell(Protocol):
    """One segment of an operator, forward and backward.

    A cell computes G chunks of N = rows x heads at once. Inputs are raw, [M, n, *] with M = G N, in the state's
    precision; the state is [N, *]. `refresh_beat` is (period, eta) of the refresh, or None. `beat` is the number of
    tokens after which the prior is given back, or None. `output_like` is the index of the input whose shape the outputs
    have. `may_be_minus_infinity` are indices of inputs of which an exponential is taken: a key, or the logarithm of a
    gate.
    """

    output_like: ClassVar[int]
    may_be_minus_infinity: Sequence[int]
    refresh_beat: tuple[int, float] | None
    beat: int | None

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """Returns (outputs [M, n, *], state before each chunk [M, *], state after the last [N, *])."""
        ...

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """Returns (gradients of the inputs, gradients of the state before the first chunk).

        Everything else is recomputed from `starts`, the states before each chunk.
        """
        ...


@dataclass(frozen=True)
class Job:
    """One call: the cell, the plan, and t [rows], the tokens seen before the call."""

    cell: Cell
    plan: Plan
    packed: bool
    t: Tensor

    def rows(self, lo: int, hi: int) -> Tensor:
        """The sequences in sorted positions [lo, hi)."""
        return table(self.plan.order[lo:hi], self.t.device)

    def window(self, block: Block, segment: Segment, like: Tensor) -> tuple[Window, Context]:
        """A segment's window on tokens [B, T, H, *], and the context for the cell."""
        heads = like.shape[1]
        window = Window(self.plan, block, segment, self.packed, self.t.device)
        refresh = due = None
        if self.cell.refresh_beat is not None:
            period, eta = self.cell.refresh_beat
            counts = window.refreshes(self._seen(block, segment), period, heads, like.dtype)
            refresh = Refresh(*(count * eta for count in counts))
        if self.cell.beat is not None:
            due = window.due(self._seen(block, segment), self.cell.beat, heads)
        return window, Context(window.valid(heads), refresh, due)

    def _seen(self, block: Block, segment: Segment) -> Tensor:
        """The tokens that each row of a segment has seen before this call."""
        return self.t[self.rows(block.lo, block.lo + segment.rows)]


def forward(job: Job, inputs: Inputs, state: Tensors, kept: Tensors) -> tuple[Tensor, list[Tensor]]:
    """(outputs, final state) from inputs [B, T, H, *] and the state. `kept` gets the state before each chunk."""
    o = empty(inputs[job.cell.output_like])
    final = [x.clone(memory_format=torch.contiguous_format) for x in state]
    for block in job.plan.blocks:
        carried = [_flat(x[job.rows(block.lo, block.hi)]) for x in state]
        for segment in block.segments:
            carried = _retire(job, block, segment.rows, carried, final)
            window, context = job.window(block, segment, state[0])
            loaded = [None if x is None else window.load(x, state[0].dtype) for x in inputs]
            spoiled = _spoil(loaded, job.cell.may_be_minus_infinity, carried[0].shape[0])
            y, starts, after = job.cell.forward(loaded, carried, context)
            if spoiled is not None:
                y, starts, after = _spread(spoiled, y, starts, after)
            carried = list(after)
            window.store(y, o)
            if kept:  # not empty: a backward follows
                _keep(segment, starts, kept)
        _retire(job, block, 0, carried, final)
    return o, final


def backward(job: Job, inputs: Inputs, kept: Tensors, do: Tensor, dfinal: Tensors) -> tuple[list[Any], list[Tensor]]:
    """(gradients of the inputs, of the initial state) from the gradients of the outputs and of the final state."""
    dinputs = [None if x is None else empty(x) for x in inputs]
    dstate = [x.clone(memory_format=torch.contiguous_format) for x in dfinal]
    for block in job.plan.blocks:
        carried = [_flat(x[:0]) for x in dfinal]
        for segment in reversed(block.segments):
            carried = _enlist(job, block, segment.rows, carried, dfinal)
            window, context = job.window(block, segment, dfinal[0])
            loaded = [None if x is None else window.load(x, dfinal[0].dtype) for x in inputs]
            starts = _recall(segment, kept)
            grads, before = job.cell.backward(loaded, starts, context, window.load(do, dfinal[0].dtype), carried)
            carried = list(before)
            for grad, target in zip(grads, dinputs, strict=True):
                if grad is not None and target is not None:
                    window.store(grad, target)
        rows = job.rows(block.lo, block.hi)
        for x, target in zip(carried, dstate, strict=True):
            target.index_copy_(0, rows, x.view(-1, *target.shape[1:]))
    return dinputs, dstate


def _spoil(loaded: list[Any], minus_infinity: Sequence[int], N: int) -> Tensor | None:
    """Replace tokens that are not finite by zeros. True for each token [M, n, 1] from the first of them on.

    A product over a chunk multiplies zeros with what later tokens write, and zero times NaN is NaN. So NaN must not
    enter the products; `_spread` writes it to where the loop over tokens has it. The first input, q or k, is read by
    its own token alone and may stay. Returns None if all are finite.
    """
    written = {i: x for i, x in enumerate(loaded) if i and x is not None}
    if not loaded[0].is_cuda and all(torch.isfinite(x.sum()) for x in written.values()):
        return None
    bad = torch.zeros_like(loaded[0][..., :1], dtype=torch.bool)
    for i, x in written.items():
        good = torch.isfinite(x) | (x == -torch.inf) if i in minus_infinity else torch.isfinite(x)
        bad |= ~good.all(-1, keepdim=True)
    for i, x in written.items():
        loaded[i] = torch.where(bad, 0, x)
    M, n, _ = bad.shape
    rows = bad.view(-1, N, n).transpose(0, 1).flatten(1)  # the tokens of each head, in their order
    return rows.cummax(1)[0].view(N, -1, n).transpose(0, 1).reshape(M, n, 1)


def _spread(spoiled: Tensor, y: Tensor, starts: Tensors, after: Tensors) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """NaN in outputs and states from the first spoiled token on."""
    N = after[0].shape[0]
    until = spoiled[:, -1, 0]  # at the end of each chunk
    before = torch.cat((torch.zeros_like(until[:N]), until[:-N]))

    def spread(x: Tensor, where: Tensor) -> Tensor:
        return x.masked_fill(where.view(-1, *[1] * (x.dim() - 1)), torch.nan)

    finals = [spread(x, until[-N:]) for x in after]
    return torch.where(spoiled, torch.nan, y), [spread(x, before) for x in starts], finals


def _flat(x: Tensor) -> Tensor:
    """[rows, H, *] to [rows * H, *]."""
    return x.flatten(0, 1)


def _retire(job: Job, block: Block, rows: int, carried: list[Tensor], final: Sequence[Tensor]) -> list[Tensor]:
    """Keep the first `rows` rows of the carried state. The others have ended: copy their state to `final`."""
    heads = final[0].shape[1]
    ended = job.rows(block.lo + rows, block.lo + carried[0].shape[0] // heads)
    if len(ended) == 0:
        return carried
    for x, target in zip(carried, final, strict=True):
        target.index_copy_(0, ended, x[rows * heads :].view(-1, *target.shape[1:]))
    return [x[: rows * heads] for x in carried]


def _enlist(job: Job, block: Block, rows: int, carried: list[Tensor], dfinal: Sequence[Tensor]) -> list[Tensor]:
    """The reverse of `_retire`: add the rows that end here, with the gradient of their final state."""
    joining = job.rows(block.lo + carried[0].shape[0] // dfinal[0].shape[1], block.lo + rows)
    if len(joining) == 0:
        return carried
    return [torch.cat((x, _flat(source[joining]))) for x, source in zip(carried, dfinal, strict=True)]


def _keep(segment: Segment, starts: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Write the states before each chunk to their slots, without the rows that have already ended."""
    for x, target in zip(starts, kept, strict=True):
        chunks = x.view(segment.chunks, segment.rows, *target.shape[1:])
        for here, slots in _runs(segment):
            target[slots] = chunks[here].flatten(0, 1)


def _recall(segment: Segment, kept: Sequence[Tensor]) -> list[Tensor]:
    """The states before each chunk, [M, *]. Rows that have ended get zeros, which an empty chunk maps to zeros."""
    starts = []
    for source in kept:
        x = source.new_zeros(segment.chunks, segment.rows, *source.shape[1:])
        for here, slots in _runs(segment):
            x[here] = source[slots].view_as(x[here])
        starts.append(x.flatten(0, 2))
    return starts


def _runs(segment: Segment) -> list[tuple[tuple[slice, slice], slice]]:
    """Pairs ((chunks, rows) of the segment, slots) that hold the same states. If no row ends, there is one pair."""
    if segment.running[-1] == segment.rows:
        first = segment.slots[0]
        return [((slice(None), slice(None)), slice(first, first + segment.chunks * segment.rows))]
    return [
        ((slice(g, g + 1), slice(running)), slice(slot, slot + running))
        for g, (slot, running) in enumerate(zip(segment.slots, segment.running, strict=True))
    ]
