"""`varla.mesa` and `varla.mesa_step`: the memory of MesaNet (von Oswald et al. 2025), read out by exact least squares.

G <- d G + beta v k^T,   lambda <- d lambda + beta k k^T,   o = G lambda^-1 q

It is two operators, one after the other: `directions` solves for the query, q* = lambda^-1 q, and `memory` without the
error term reads G with it. lambda begins at lambda0 I. The decay forgets this prior, too. Every `beat` tokens it is
given back (`directions` with `forget`), so that lambda stays invertible.
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from varla.arguments import check_flag, refuse_unknown
from varla.ops import dispatch
from varla.ops.checks import check_gated
from varla.ops.directions import FORGETTING
from varla.ops.directions.settings import DirectionSettings
from varla.ops.dispatch import CallOptions, Mechanism
from varla.ops.features import Features
from varla.ops.memory import memory_chunk, reference_form
from varla.ops.memory.ranks import memory_over_ranks
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import DeltaRuleState, ForgettingDirectionState, MesaState


class MesaOptions(TypedDict, total=False):
    """The scalars of `varla.mesa`, for type checkers."""

    lambda0: float
    beat: int
    feature_map: str
    normalize_query: bool
    normalize_key: bool
    scale: float | None


class Call(MesaOptions, CallOptions[MesaState], total=False):
    """The keywords of `varla.mesa`, for type checkers."""

    decay: Tensor | None


class Step(MesaOptions, total=False):
    """The keywords of `varla.mesa_step`, for type checkers."""

    decay: Tensor | None


SCALARS: dict[str, Any] = {
    "lambda0": 1.0,
    "beat": DirectionSettings.beat,
    "feature_map": "identity",
    "normalize_query": True,
    "normalize_key": True,
    "scale": 1.0,
}


@overload
def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[Call],
) -> Tensor: ...
@overload
def mesa(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, MesaState]: ...
@dispatch.accepts({"decay": None}, dispatch.CALL, SCALARS)
def mesa(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: bool = False, **options: Unpack[Call]
) -> Tensor | tuple[Tensor, MesaState]:
    """Ridge regression on the context, solved for every query. Every backend computes it exactly.

        lambda <- d lambda + beta k k^T,   G <- d G + beta v k^T,   o = scale * G lambda^-1 q

    Without decay, o is scale * W q for the W that minimises the sum of beta |v - W k|^2 over the tokens so far, plus
    lambda0 |W|^2. With decay, a pair counts less the older it is. The prior lambda0 I decays too: a token after a
    positive multiple of `beat` tokens begins by giving back what the prior has lost.

    Args:
        q: queries [B, T, H, D], raw: feature map and normalisation are applied inside.
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        v: values [B, T, H, Dv].
        beta: weights of the pairs [B, T, H], 0 to 2. Errors grow like beta / lambda0, as for `strength` of `varla.vla`.
        decay: logarithm of the decay d [B, T, H], at most 0. None: no decay.
        lambda0: the prior. Between two beats, lambda0 times the product of the decays must stay above 0.001 beta |k|^2
            in float32. On the CPU less is an error, as for `beat` of `varla.vla`.
        beat: tokens between two returns of the prior. Chunks are not longer.
        feature_map: "identity", "elu1" or "silu", applied before the normalisations.
        normalize_query: divide queries by their length.
        normalize_key: divide keys by their length.
        scale: factor on the queries. None: D ** -0.5.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`. There are no kernels.
        backend: "reference", "chunk" or "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, MesaState) with `return_state`.
    """
    call, own = dispatch.split(options, {"decay": None, **SCALARS})
    check_flag("return_state", return_state)
    state: MesaState | None = call.pop("initial_state")
    solving, reading, sizes, settings, out = _prepared("B T H", q, k, v, beta, own)
    along, held = _split(state, "initial_state")
    solved, along = dispatch.run(FORGETTING, solving, sizes, settings[:1], True, initial_state=along, **call)
    reading[0] = solved
    o, held = dispatch.run(_SUM, reading, sizes, settings[1:], True, initial_state=held, **call)
    o = o.to(out)
    return (o, MesaState(held.S, along.A, along.f, held.t)) if return_state else o


def mesa_step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: MesaState | None = None, **options: Unpack[Step]
) -> tuple[Tensor, MesaState]:
    """One token of `mesa`: q, k [B, H, D], v [B, H, Dv], beta, decay [B, H]. Returns (o, new state)."""
    allowed = ("decay", *SCALARS)
    for name in options.keys() - allowed:
        refuse_unknown("option", name, allowed, error=TypeError)
    solving, reading, sizes, settings, out = _prepared("B H", q, k, v, beta, dict(options))
    along, held = _split(state, "state")
    reading[0], along = dispatch.run_step(FORGETTING, solving, sizes, settings[:1], along)
    o, held = dispatch.run_step(_SUM, reading, sizes, settings[1:], held)
    return o.to(out), MesaState(held.S, along.A, along.f, held.t)


def _prepared(
    where: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, own: dict[str, Any]
) -> tuple[list[Any], list[Any], dict[str, int], tuple[DirectionSettings, MemorySettings], torch.dtype]:
    """(inputs of `directions`, inputs of `memory` without its query, sizes, settings of both, the outputs' dtype)."""
    decay = own.pop("decay", None)
    chosen = {**SCALARS, **own}
    for name in ("normalize_query", "normalize_key"):
        check_flag(name, chosen[name])
    wide = f"{where} D"
    inputs, sizes = check_gated(
        {"q": (q, wide), "k": (k, wide), "v": (v, f"{where} Dv"), "beta": (beta, where)}, {"decay": (decay, where)}
    )
    along = dispatch.settings_of(
        DirectionSettings,
        {
            "lambda0": chosen["lambda0"],
            "beat": chosen["beat"],
            "feature_map": chosen["feature_map"],
            "normalize_key": chosen["normalize_query"],  # `directions` solves for its keys: here, the queries
            "gain": "raw",
            "refresh_every": None,
        },
    )
    held = dispatch.settings_of(
        MemorySettings,
        {
            "feature_map": "identity",
            "normalize_key": False,
            "normalizer": False,
            "error": False,
            "scale": chosen["scale"],
        },
    )
    # In the state's precision: what goes from one operator to the other is not rounded to the inputs' dtype.
    dtype = inputs[0].dtype
    precise = torch.promote_types(dtype, torch.float32)
    given: list[Any] = [None if x is None else x.to(precise) for x in inputs]
    q, k, v, beta, decay = given
    key = Features(k, along.feature_map, chosen["normalize_key"]).y
    # `directions` makes its u a unit vector.
    strength = beta if chosen["normalize_key"] else beta * (key * key).sum(-1, keepdim=True)
    along.check_strength(strength)
    along.check_forget(decay, "decay")
    forget = torch.zeros_like(beta) if decay is None else decay
    return [q, key, strength, forget], [None, key, v, None, beta, decay], sizes, (along, held), dtype


def _split(state: Any, name: str) -> tuple[ForgettingDirectionState | None, DeltaRuleState | None]:
    """The states of the two operators."""
    if state is None:
        return None, None
    if not isinstance(state, MesaState):
        raise TypeError(f"{name} must be a MesaState or None, got {type(state).__name__}")
    return ForgettingDirectionState(state.A, state.f, state.t), DeltaRuleState(state.S, state.t)


_SUM = Mechanism(DeltaRuleState, reference_form, memory_chunk, ranks=memory_over_ranks)
