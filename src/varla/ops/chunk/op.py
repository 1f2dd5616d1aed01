"""The chunk form as one PyTorch operator, for every mechanism: opaque to torch.compile, with a hand-written backward.

An operator's schema has no dataclasses, so the mechanism and its scalars travel as one string (`encode`).
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.chunk import driver
from varla.ops.chunk.cells import Cell, DeltaCell, LinearCell, VLACell
from varla.ops.chunk.decay import DecayedDeltaCell
from varla.ops.chunk.plan import SEGMENT_TOKENS, SEGMENT_TOKENS_GPU, make_plan, slots_needed
from varla.ops.operator import operator
from varla.ops.packing import sequence_bounds
from varla.ops.settings import (
    DecayedDeltaRuleSettings,
    DeltaRuleSettings,
    LinearAttentionSettings,
    Settings,
    VLASettings,
)

_CELLS: dict[str, tuple[type[Any], Callable[[Any], Cell]]] = {
    "VLASettings": (VLASettings, VLACell),
    "LinearAttentionSettings": (LinearAttentionSettings, LinearCell),
    "DeltaRuleSettings": (DeltaRuleSettings, DeltaCell),
    "DecayedDeltaRuleSettings": (DecayedDeltaRuleSettings, DecayedDeltaCell),
}
_FIELDS = {name: tuple(field.name for field in fields(kind)) for name, (kind, _) in _CELLS.items()}


def encode(settings: Settings) -> str:
    """Settings as a string that `decode` reads back exactly, built so that torch.compile can trace it."""
    name = type(settings).__name__
    return " ".join([name, *(f"{getattr(settings, field)!r}" for field in _FIELDS[name])])


@lru_cache(maxsize=256)
def decode(text: str) -> tuple[Settings, Cell]:
    """The settings that `encode` wrote, and the cell that computes with them."""
    name, *values = text.split()
    kind, cell = _CELLS[name]
    settings = kind(*map(ast.literal_eval, values))
    return settings, cell(settings)


def _job(inputs: Sequence[Tensor], t: Tensor, cu_seqlens: Tensor | None, text: str, chunk_size: int) -> driver.Job:
    B, T, H = inputs[0].shape[:3]
    if cu_seqlens is None:
        starts, lengths = [0] * B, [T] * B
    else:
        starts, lengths = sequence_bounds(cu_seqlens, T)
    settings, cell = decode(text)
    refresh = settings.beat if isinstance(settings, VLASettings) else None
    segment = SEGMENT_TOKENS_GPU if inputs[0].is_cuda else SEGMENT_TOKENS
    plan = make_plan(starts, lengths, chunk_size, H, segment)
    return driver.Job(cell, plan, cu_seqlens is not None, t, refresh)


def _slots(inputs: Sequence[Tensor], t: Tensor, cu_seqlens: Tensor | None, chunk_size: int, keep: bool) -> int:
    return slots_needed(t.shape[0], inputs[0].shape[1], chunk_size, cu_seqlens is not None) if keep else 0


def _no_autocast(device: torch.device) -> torch.autocast:
    """Products inside run in the state's precision, whatever autocast would like."""
    return torch.autocast(device.type, enabled=False)


def _chunk(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    chunk_size: int,
    keep: bool,
) -> list[Tensor]:
    """[outputs, *final state, *state before every chunk]; the last part is empty unless `keep`."""
    with _no_autocast(t.device):
        job = _job(inputs, t, cu_seqlens, settings, chunk_size)
        o, final, kept = driver.forward(job, inputs, state, _slots(inputs, t, cu_seqlens, chunk_size, keep))
    return [o, *final, *kept]


def _chunk_fake(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    chunk_size: int,
    keep: bool,
) -> list[Tensor]:
    slots = _slots(inputs, t, cu_seqlens, chunk_size, keep)
    return [
        torch.empty_like(inputs[2], memory_format=torch.contiguous_format),
        *(torch.empty_like(x) for x in state),
        *(x.new_empty(slots, *x.shape[1:]) for x in state),
    ]


def _chunk_backward(
    inputs: Sequence[Tensor],
    kept: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    chunk_size: int,
    do: Tensor,
    dfinal: Sequence[Tensor],
) -> list[Tensor]:
    """[*gradients of the inputs, *gradients of the initial state]."""
    with _no_autocast(t.device):
        job = _job(inputs, t, cu_seqlens, settings, chunk_size)
        dinputs, dstate = driver.backward(job, inputs, kept, do, dfinal)
    return [*dinputs, *dstate]


def _chunk_backward_fake(
    inputs: Sequence[Tensor],
    kept: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    chunk_size: int,
    do: Tensor,
    dfinal: Sequence[Tensor],
) -> list[Tensor]:
    return [
        *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs),
        *(torch.empty_like(x) for x in dfinal),
    ]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    tensors, state, t, cu_seqlens, settings, chunk_size, _ = inputs
    kept = output[1 + len(state) :]
    ctx.counts = (len(tensors), len(state))
    ctx.arguments = (settings, chunk_size)
    ctx.save_for_backward(*tensors, *kept, t, cu_seqlens)


def _backward(ctx, grads):  # type: ignore[no-untyped-def]
    n, m = ctx.counts
    *saved, t, cu_seqlens = ctx.saved_tensors
    tensors, kept = saved[:n], saved[n:]
    do, dfinal = grads[0], list(grads[1 : 1 + m])
    result = chunk_backward(tensors, kept, t, cu_seqlens, *ctx.arguments, do, dfinal)
    return result[:n], result[n:], None, None, None, None, None


chunk = operator("chunk", _chunk, _chunk_fake, _backward, _setup_context)


def refuse_double_backward(backend: str) -> Callable[..., Any]:
    """A backward for a backward written by hand: an error that says what to use instead."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            f"double backward is not supported by backend={backend!r}: its gradients are written by hand and have no "
            "gradients of their own. Use backend='reference' (or 'scan'), which differentiate as often as you like."
        )

    return refuse


chunk_backward = operator("chunk_backward", _chunk_backward, _chunk_backward_fake, refuse_double_backward("chunk"))
