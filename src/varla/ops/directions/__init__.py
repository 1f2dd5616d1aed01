"""`varla.directions`: the write directions a, from keys k, penalty directions u and the state A.

lambda <- lambda + w u u^T,   A = lambda^-1     by Sherman-Morrison; |u| = 1 with a strength w, else `penalty_scale`
A <- A + eta I                                  every `refresh_every` tokens
a = A k / |A k|                                 or another gain

With `forget`, lambda <- c lambda + w u u^T. Every `beat` tokens, the forgotten part of lambda0 I is given back. With
forget_at="beat", lambda - lambda0 I is multiplied there by the product of c since the last beat instead.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from varla.ops import dispatch
from varla.ops.checks import check_gated
from varla.ops.custom_op import Arguments
from varla.ops.directions.chunk import DirectionCell, DirectionOperator
from varla.ops.directions.fading import fading
from varla.ops.directions.forgetting import forgetting_chunk
from varla.ops.directions.ranks import directions_over_ranks
from varla.ops.directions.reference import directions_reference, forgetting_reference
from varla.ops.directions.settings import DirectionOptions, DirectionSettings
from varla.ops.dispatch import CallOptions, Held, Mechanism, Result
from varla.ops.state import DirectionState, ForgettingDirectionState


class Strength(TypedDict, total=False):
    """The gate of `varla.directions` beside `forget`, for type checkers."""

    strength: Tensor | None


class Call(DirectionOptions, Strength, CallOptions[DirectionState], total=False):
    """The keywords of `varla.directions`, for type checkers."""

    forget: None


class Forgetting(DirectionOptions, Strength, CallOptions[ForgettingDirectionState]):
    """The keywords of `varla.directions` with `forget`, for type checkers."""

    forget: Tensor


SCALARS = dispatch.defaults_of(DirectionSettings)


@overload
def directions(k: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[Call]) -> Tensor: ...
@overload
def directions(
    k: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[Forgetting]
) -> Tensor: ...
@overload
def directions(
    k: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, DirectionState]: ...
@overload
def directions(
    k: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[Forgetting]
) -> tuple[Tensor, ForgettingDirectionState]: ...
@dispatch.accepts({"strength": None}, dispatch.CALL, SCALARS)
def directions(
    k: Tensor, u: Tensor, *, return_state: bool = False, forget: Tensor | None = None, **options: Any
) -> Tensor | tuple[Tensor, DirectionState] | tuple[Tensor, ForgettingDirectionState]:
    """The write directions of VLA: lines 8 to 18 of Algorithm 1. Every backend computes them exactly.

    `varla.memory` writes along them. `varla.vla` computes both in one call, and faster.

    Args:
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        u: penalty directions [B, T, H, D], raw: normalised inside. A zero u does not change A.
        strength: penalty strengths [B, T, H], as for `varla.vla`.
        forget: logarithms of the forgetting factors of A^-1 [B, T, H], as for `varla.vla`.
        initial_state, return_state, cu_seqlens, backend, chunk_size: as for `varla.vla`.
        options: lambda0, refresh_every, refresh, gain, feature_map, penalty_scale, normalize_key, update_penalty,
            beat and forget_at, as for `varla.vla`.

    Returns:
        a [B, T, H, D] in the inputs' dtype, or (a, DirectionState) with `return_state`. With `forget`, the state is a
        ForgettingDirectionState.
    """
    call, own = dispatch.split(options, {"strength": None, "forget": None, **SCALARS})
    strength = own.pop("strength", None)
    settings = dispatch.settings_of(DirectionSettings, own)
    inputs, sizes = check_gated(
        {"k": (k, "B T H D"), "u": (u, "B T H D")}, {"strength": (strength, "B T H"), "forget": (forget, "B T H")}
    )
    settings.check_strength(inputs[2])
    if forget is not None:
        settings.check_forget(inputs[3])
        if settings.forget_at == "beat":
            return dispatch.run(FADING[dispatch.fresh(call)], inputs, sizes, (settings,), return_state, **call)
        dispatch.refuse_kernels(call["backend"], "chunk")
        return dispatch.run(FORGETTING, inputs, sizes, (settings,), return_state, **call)
    return dispatch.run(DIRECTIONS, inputs[:3], sizes, (settings,), return_state, **call)


def _forgetting_reference(inputs: Sequence[Any], held: Held, t: Tensor, settings: DirectionSettings) -> Result:
    (k, u, strength, forget), (A, f) = inputs, held
    a, A, f = forgetting_reference(k, u, strength, forget, A, f, t, settings)
    return a, [A, f]


def _reference(inputs: Sequence[Any], held: Held, t: Tensor, settings: DirectionSettings) -> Result:
    (k, u, strength), (A,) = inputs, held
    a, A = directions_reference(k, u, strength, A, t, settings)
    return a, [A]


def _kernels(call: Arguments, held: Held, keep: bool) -> Result:
    from varla.ops.directions.triton.op import directions_triton

    inputs, settings, dtype = prepared(call.inputs[:3], call.settings[0])
    missing = [] if len(held) == 2 else [None]  # forget, and f
    a, *after = directions_triton(
        *inputs, *call.inputs[3:], *missing, *held, *missing, call.t, call.cu_seqlens, settings, keep
    )
    return a.to(dtype), after[: len(held)]


def prepared(inputs: Sequence[Any], settings: DirectionSettings) -> Any:
    """Inputs and settings for the kernels, which do not know SiLU and may need float32; and the outputs' dtype."""
    from varla.ops.triton.features import scaled_features

    k, u, strength = inputs
    dtype = k.dtype
    if dtype != torch.float32 and strength is None and settings.needs_float32(k.shape[-1]):
        k, u = k.float(), u.float()
    if settings.feature_map == "silu":
        (k,) = scaled_features(k, None, "silu", False, 1.0, k.dtype)
        settings = replace(settings, feature_map="identity")
    return (k, u, strength), settings, dtype


_chunk = DirectionOperator("directions_chunk", DirectionCell, "k u strength?", "A", DirectionSettings)
DIRECTIONS = Mechanism(DirectionState, _reference, _chunk, _kernels, ranks=directions_over_ranks)


def fading_kernels(call: Arguments, held: Held, keep: bool, fresh: bool) -> Result:
    """Forgetting at the beat by kernels. `fresh`: all sequences begin with this call."""
    settings = call.settings[0]
    if at_chunks(settings, fresh):
        return _kernels(call, held, keep)

    def pieces(x: Sequence[Any], A: Tensor) -> tuple[Tensor, Tensor]:
        a, (after,) = _kernels(Arguments(x, call.t.new_zeros(len(A)), None, (settings,)), [A], keep)
        return a, after

    return fading(call.inputs, held, call.t, call.cu_seqlens, settings, fresh, pieces)


def at_chunks(settings: DirectionSettings, fresh: bool) -> bool:
    """Whether all beats are known to be at the ends of chunks: the kernels then need no pieces."""
    from varla.ops.triton.plan import CHUNK

    return fresh and settings.beat % CHUNK == 0


FORGETTING = Mechanism(ForgettingDirectionState, _forgetting_reference, forgetting_chunk, ranks=directions_over_ranks)
FADING = {
    fresh: Mechanism(
        ForgettingDirectionState,
        _forgetting_reference,
        forgetting_chunk,
        partial(fading_kernels, fresh=fresh),
        ranks=directions_over_ranks,
    )
    for fresh in (False, True)
}
