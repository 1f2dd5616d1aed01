"""`varla.directions`: the write directions a, from keys k, penalty directions u and the state A.

lambda <- lambda + u u^T,   A = lambda^-1       by Sherman-Morrison, |u| set to `penalty_scale`
A <- A + eta I                                  every `refresh_every` tokens
a = A k / |A k|                                 or another gain
"""

from collections.abc import Sequence
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from varla.ops.checks import check_inputs
from varla.ops.chunk.op import ChunkOperator
from varla.ops.directions.chunk import DirectionCell
from varla.ops.directions.reference import directions_reference
from varla.ops.directions.settings import DirectionOptions, DirectionSettings
from varla.ops.dispatch import CALL, CallOptions, Held, Mechanism, Result, accepts, defaults_of, run, settings_of, split
from varla.ops.state import DirectionState


class DirectionCall(DirectionOptions, CallOptions, total=False):
    """The keywords of `varla.directions`, for type checkers."""

    initial_state: DirectionState | None


SCALARS = defaults_of(DirectionSettings)


@overload
def directions(
    k: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[DirectionCall]
) -> Tensor: ...
@overload
def directions(
    k: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[DirectionCall]
) -> tuple[Tensor, DirectionState]: ...
@accepts(CALL, SCALARS)
def directions(
    k: Tensor, u: Tensor, *, return_state: bool = False, **options: Unpack[DirectionCall]
) -> Tensor | tuple[Tensor, DirectionState]:
    """The write directions of VLA: lines 8 to 18 of Algorithm 1. Every backend computes them exactly.

    `varla.memory` writes along them. `varla.vla` computes both in one call, and faster.

    Args:
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        u: penalty directions [B, T, H, D], raw: normalised inside. A zero u does not change A.
        initial_state, return_state, cu_seqlens, backend, chunk_size: as for `varla.vla`.
        options: lambda0, refresh_every, refresh, gain, feature_map, penalty_scale, normalize_key and update_penalty, as
            for `varla.vla`.

    Returns:
        a [B, T, H, D] in the inputs' dtype, or (a, DirectionState) with `return_state`.
    """
    call, own = split(options, SCALARS)
    settings = settings_of(DirectionSettings, own)
    (k, u), sizes = check_inputs({"k": (k, "B T H D"), "u": (u, "B T H D")})
    return run(_DIRECTIONS, (k, u), sizes, (settings,), return_state, **call)


def _reference(inputs: Sequence[Any], held: Held, t: Tensor, settings: DirectionSettings) -> Result:
    (k, u), (A,) = inputs, held
    a, A = directions_reference(k, u, A, t, settings)
    return a, [A]


def _kernels(
    inputs: Sequence[Any], held: Held, t: Tensor, cu_seqlens: Tensor | None, settings: Sequence[Any], keep: bool
) -> Result:
    from varla.ops.directions.triton.op import directions_triton

    dtype = inputs[0].dtype
    if dtype != torch.float32 and settings[0].needs_float32(inputs[0].shape[-1]):
        inputs = [x.float() for x in inputs]
    a, A, *_ = directions_triton(*inputs, *held, t, cu_seqlens, *settings, keep)
    return a.to(dtype), [A]


_chunk = ChunkOperator("directions_chunk", DirectionCell, "k u", "A", DirectionSettings)
_DIRECTIONS = Mechanism(DirectionState, _reference, _chunk, _kernels)
