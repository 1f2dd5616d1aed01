"""`varla.vla` and `varla.vla_step`: `directions`, then `memory`, as one operator. It is Algorithm 1 of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from varla.arguments import refuse_unknown
from varla.ops import dispatch
from varla.ops.checks import check_gated, check_inputs, check_untracked
from varla.ops.custom_op import Arguments
from varla.ops.directions import at_chunks, fading_kernels
from varla.ops.directions.reference import directions_reference, forgetting_reference
from varla.ops.directions.settings import DirectionOptions, DirectionSettings
from varla.ops.dispatch import CallOptions, Held, Mechanism, Result
from varla.ops.fused.chunk import vla_chunk, vla_forgetting_chunk
from varla.ops.fused.ranks import vla_over_ranks
from varla.ops.memory import kernel_form
from varla.ops.memory.reference import memory_reference
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import ForgettingState, VLAState


class VLAOptions(DirectionOptions, total=False):
    """The scalars of `varla.vla`, for type checkers; see `VLASettings`."""

    eps: float
    normalizer: bool
    normalize_query: bool
    scale: float | None


@dataclass(frozen=True)
class VLASettings(DirectionSettings):
    """The scalars of VLA. The function, the step, the layer and the configurations all read them here.

    They are those of `directions`, and four of `memory`. Both have feature_map and normalize_key, with the same value.
    """

    eps: float = MemorySettings.eps
    normalizer: bool = MemorySettings.normalizer
    normalize_query: bool = MemorySettings.normalize_query
    scale: float | None = MemorySettings.scale

    # The settings of `directions` and of `memory`.
    halves: tuple[DirectionSettings, MemorySettings] = field(init=False, repr=False, compare=False)
    # Whether the kernels get features of q and k that are computed before.
    prepares_features: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the settings of `directions` and of `memory`, which check every value."""
        along = {name: getattr(self, name) for name in _ALONG}
        held = {name: getattr(self, name) for name in _HELD}
        object.__setattr__(self, "halves", (DirectionSettings(**along), MemorySettings(**held)))
        prepares = self.feature_map == "silu" or self.normalize_query or self.scale != 1
        object.__setattr__(self, "prepares_features", prepares)


# The scalars of `directions` and of `memory`. torch.compile cannot read the fields of a dataclass.
SCALARS = dispatch.defaults_of(VLASettings)
_ALONG, _HELD = (
    [name for name in dispatch.defaults_of(kind) if name in SCALARS] for kind in (DirectionSettings, MemorySettings)
)


class Gates(TypedDict, total=False):
    """The gates of `varla.vla`, for type checkers."""

    beta: Tensor | None
    decay: Tensor | None
    strength: Tensor | None


class Call(VLAOptions, Gates, CallOptions[VLAState], total=False):
    """The keywords of `varla.vla`, for type checkers."""

    forget: None


class Forgetting(VLAOptions, Gates, CallOptions[ForgettingState]):
    """The keywords of `varla.vla` with `forget`, for type checkers."""

    forget: Tensor


class StepOptions(VLAOptions, Gates, total=False):
    """The keywords of `varla.vla_step` without `forget`, for type checkers."""

    inplace: bool
    backend: str


class Step(StepOptions, total=False):
    """The keywords of `varla.vla_step`, for type checkers."""

    forget: None


class ForgettingStep(StepOptions):
    """The keywords of `varla.vla_step` with `forget`, for type checkers."""

    forget: Tensor


GATES: dict[str, Tensor | None] = {"beta": None, "decay": None, "strength": None}
KEYWORDS = {**GATES, "forget": None, **SCALARS}


@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[Call]
) -> Tensor: ...
@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[Forgetting]
) -> Tensor: ...
@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, VLAState]: ...
@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[Forgetting]
) -> tuple[Tensor, ForgettingState]: ...
@dispatch.accepts(GATES, dispatch.CALL, SCALARS)
def vla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    return_state: bool = False,
    forget: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, VLAState] | tuple[Tensor, ForgettingState]:
    """Variational Linear Attention: Algorithm 1 of the paper. Every backend computes it exactly.

        a = directions(k, u)        A <- A - w A u u^T A / (1 + w u^T A u),   a = A k / |A k|
        o = memory(q, k, v, a)      S <- d S,   S <- S + beta (v - S k) a^T,   z <- d z + k,   o = S q / max(q . z, eps)

    The paper has no gates: w, beta and d are 1 there. With beta, decay and strength, `normalizer=False` and SiLU
    features of unit length, this is Gated VLA. Gated VLA with strength 0 is Gated DeltaNet.

    Args:
        q: queries [B, T, H, D], raw: the feature map is applied inside.
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        v: values [B, T, H, Dv].
        u: penalty directions [B, T, H, D], raw: normalised inside. A zero u does not change A.
        beta: write strengths [B, T, H], 0 to 2: 0 writes nothing. None: 1.
        decay: logarithm of the decay d of S and z [B, T, H], at most 0, applied before the prediction. None: no decay.
        strength: penalty strengths w [B, T, H], at least 0, for u of length 1. 0 leaves A as it is. None: u has the
            length `penalty_scale`. Relative errors grow like w / lambda0, which may be up to 1000 in float32. With
            bfloat16 inputs, the kernels are off by 1 to 2% at 1, and by 5% at 10.
        forget: logarithm of the forgetting factor c of A^-1 [B, T, H], at most 0: A^-1 <- c A^-1 + w u u^T. Every
            `beat` tokens, the forgotten part of the prior is given back; see also `forget_at`. Needs
            refresh_every=None. None: no forgetting.
        initial_state: the state to start from, with one row for each sequence: a VLAState, or with `forget` a
            ForgettingState. None: S = 0, A = I / lambda0, z = 0.
        return_state: also return the state after the last token.
        cu_seqlens: offsets [N + 1] of N sequences packed into B = 1. Packed sequences do not affect each other.
        backend: "reference", "chunk", "triton" or "auto"; see `varla.backends()`.
        chunk_size: tokens in a chunk, for backend "chunk". None: chosen by D. Any value gives the same result. Where
            lambda0 is within 8 times its bound, chunks are shorter than asked: they would cost digits.
        lambda0: initial penalty; the initial A is I / lambda0. Not used with `initial_state`. Relative errors grow like
            |u|^2 / lambda0, so float32 states need lambda0 >= 0.001 |u|^2, and float64 ones 2e-12 |u|^2.
        refresh_every: period of the refresh A <- A + eta I, in tokens of a sequence. Tokens of earlier calls count,
            through the state. None: no refresh.
        refresh: size eta of the refresh.
        eps: smallest denominator.
        gain: how the write direction a follows from A k. "unit" divides by |A k| (the paper). "projection" divides by
            k . A k, so that S k = v holds for the newest pair. "raw" is A k itself (VLAv2; with u = k, classical
            recursive least squares). With "raw", S diverges while beta k . A k stays above 2: k . A k is up to 1 /
            lambda0 where u has not penalised k (docs/math.md, section 6).
        feature_map: "elu1" (ELU + 1), "silu", or "identity" if q and k are features already.
        penalty_scale: length of u after normalisation. None: D ** -0.5, as in Algorithm 1; 1.0: as in the paper's eq.
            (penalty). An error together with `strength`.
        normalizer: divide outputs by max(q . z, eps). False: o = S q.
        normalize_query: normalise query features to unit length.
        scale: factor on the query features. None: D ** -0.5.
        normalize_key: normalise key features to unit length for S. False: the paper's ablation.
        update_penalty: False keeps A at its initial value, without refresh: the paper's ablation.
        beat: for `forget`, the tokens between two returns of the prior. Let C be the product of c since the last beat.
            A token after a positive multiple of `beat` tokens begins with A^-1 <- A^-1 + lambda0 (1 - C) I, C <- 1.
            Between two beats, C lambda0 must stay above the bound of lambda0: above 0.001 w in float32, with w =
            |u|^2 or the strength. Chunks are not longer than the beat.
        forget_at: "token", as above. "beat": A^-1 forgets only at a beat, and the prior never: A^-1 <- lambda0 I + C
            (A^-1 - lambda0 I), C <- 1. Then C may be any number, 0 too (forget = -inf), and there are kernels. Choose a
            `beat` of some hundred tokens: each has an inverse of its own.

    Values of beta, decay, strength and forget are checked if they are on the CPU. On a GPU that would wait for the
    device: values that are not allowed then give results without meaning.

    NaN or infinity in k, v, u or a gate makes the later outputs of its row and head NaN. In the kernels it also reaches
    earlier tokens of the same chunk of 64, because their products run over whole chunks. A decay of -inf is no such
    value: it forgets all of S and z.

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, VLAState) with `return_state`. With `forget`, the state is a
        ForgettingState.
    """
    call, own = dispatch.split(options, KEYWORDS)
    gates = {name: own.pop(name, None) for name in GATES}
    settings = dispatch.settings_of(VLASettings, own)
    gated = forget is not None or any(x is not None for x in gates.values())
    if gated:
        inputs, sizes = _gated("B T H", q, k, v, u, {**gates, "forget": forget}, settings)
    else:
        tensors, sizes = check_inputs(
            {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "u": (u, "B T H D")}
        )
        inputs = [*tensors, None, None, None, None]
    if forget is not None:
        if settings.forget_at == "beat":
            return dispatch.run(_FADING[dispatch.fresh(call)], inputs, sizes, settings.halves, return_state, **call)
        dispatch.refuse_kernels(call["backend"], "chunk")
        return dispatch.run(_FORGETTING, inputs, sizes, settings.halves, return_state, **call)
    return dispatch.run(_VLA, inputs[:-1], sizes, settings.halves, return_state, **call)


@overload
def vla_step(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: VLAState | None = None, **options: Unpack[Step]
) -> tuple[Tensor, VLAState]: ...
@overload
def vla_step(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: ForgettingState | None = None, **options: Unpack[ForgettingStep]
) -> tuple[Tensor, ForgettingState]: ...
@dispatch.accepts(GATES, SCALARS)
def vla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    state: VLAState | ForgettingState | None = None,
    *,
    inplace: bool = False,
    backend: str = "auto",
    forget: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, VLAState] | tuple[Tensor, ForgettingState]:
    """One token of `vla`, in constant memory. The options are those of `vla`.

    With `forget`, forget_at="token" has no kernel, and with "beat" there are two: the first forgets.

    q, k, u [B, H, D], v [B, H, Dv], gates [B, H]; `state` None begins a sequence. Returns (o [B, H, Dv], state).

    Args:
        inplace: False does not change the given state. True updates and returns it, without a copy, so that a CUDA
            graph can capture the call. The state's tensors must be contiguous. No tensor may require grad, except under
            torch.no_grad().
        backend: "reference" (the loop, with derivatives), "triton" (one kernel for all rows and heads, without
            derivatives), or "auto": the kernel on a GPU if no gradients are needed, else the loop.
    """
    for name in set(options) - set(SCALARS) - set(GATES):
        refuse_unknown("option", name, ["inplace", "backend", *GATES, "forget", *SCALARS], error=TypeError)
    own: dict[str, Any] = dict(options)
    gates = {name: own.pop(name, None) for name in GATES}
    settings = dispatch.settings_of(VLASettings, own)
    gated = forget is not None or any(x is not None for x in gates.values())
    gates["forget"] = forget
    if gated:
        inputs, sizes = _gated("B H", q, k, v, u, gates, settings)
    else:
        tensors, sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "u": (u, "B H D")})
        inputs = [*tensors, None, None, None, None]
    if inplace:
        named = {name: x for name, x in {"q": q, "k": k, "v": v, "u": u, **gates}.items() if x is not None}
        check_untracked("an update in place keeps nothing for a backward", named)
    mechanism: Mechanism[Any] = _VLA
    if forget is not None and settings.forget_at == "beat":
        mechanism = _FADING[state is None]
    elif forget is not None:
        dispatch.refuse_kernels(backend, "reference")  # forgetting with every token has no decode kernel
        mechanism = _FORGETTING
    else:
        inputs = inputs[:-1]
    stepped: tuple[Tensor, Any] = dispatch.run_step(
        mechanism, inputs, sizes, settings.halves, state, backend=backend, inplace=inplace
    )
    return stepped


def _gated(
    where: str, q: Tensor, k: Tensor, v: Tensor, u: Tensor, gates: Mapping[str, Any], settings: VLASettings
) -> tuple[list[Any], dict[str, int]]:
    """(inputs of the operator, sizes). The tensors begin with dimensions `where`."""
    wide, values = f"{where} D", f"{where} Dv"
    inputs, sizes = check_gated(
        {"q": (q, wide), "k": (k, wide), "v": (v, values), "u": (u, wide)},
        {name: (x, where) for name, x in gates.items()},
    )
    settings.check_strength(inputs[6])
    settings.check_forget(inputs[7])
    return inputs, sizes


def _reference(
    inputs: Sequence[Any], held: Held, t: Tensor, along: DirectionSettings, settings: MemorySettings
) -> Result:
    """Algorithm 1: the loop of `directions`, then that of `memory`."""
    q, k, v, u, beta, decay, strength = inputs
    S, A, z = held
    a, A = directions_reference(k, u, strength, A, t, along)
    o, S, z = memory_reference(q, k, v, a, beta, decay, S, z, settings)
    return o, [S, A, z]


def _forgetting_reference(
    inputs: Sequence[Any], held: Held, t: Tensor, along: DirectionSettings, settings: MemorySettings
) -> Result:
    """As `_reference`, with forgetting in A."""
    q, k, v, u, beta, decay, strength, forget = inputs
    S, A, z, f = held
    a, A, f = forgetting_reference(k, u, strength, forget, A, f, t, along)
    o, S, z = memory_reference(q, k, v, a, beta, decay, S, z, settings)
    return o, [S, A, z, f]


def _kernels(call: Arguments, held: Held, keep: bool) -> Result:
    from varla.ops.fused.triton.op import vla_triton
    from varla.ops.triton.features import scaled_features

    inputs, t, cu_seqlens, (along, own) = call
    dtype, D = inputs[0].dtype, inputs[0].shape[-1]
    if dtype != torch.float32 and inputs[6] is None and along.needs_float32(D):
        inputs = [None if x is None else x.float() for x in inputs]
    if own.feature_map == "silu" or own.normalize_query or own.scale != 1:  # features that the kernels do not know
        q, k, *others = inputs
        (q,) = scaled_features(q, None, own.feature_map, own.normalize_query, own.scale_of(D), q.dtype)
        (k,) = scaled_features(k, None, own.feature_map, False, 1.0, k.dtype)
        inputs = [q, k, *others]
        along = replace(along, feature_map="identity")
        own = replace(own, feature_map="identity", normalize_query=False, scale=1.0)
    missing = [] if len(held) == 4 else [None]  # forget, and f
    o, *after = vla_triton(*inputs, *missing, *held, *missing, t, cu_seqlens, along, own, keep)
    return o.to(dtype), after[: len(held)]


def _decode(inputs: Sequence[Any], state: VLAState, settings: Sequence[Any]) -> Tensor:
    from varla.ops.fused.triton.decode import decode_

    o: Tensor = decode_(*inputs, *state.tensors().values(), *settings)
    return o


def _decode_fading(inputs: Sequence[Any], state: ForgettingState, settings: Sequence[Any]) -> Tensor:
    from varla.ops.fused.triton.decode import decode_, fade_

    *others, forget = inputs
    fade_(state.A, state.f, state.t, forget, settings[0])
    o: Tensor = decode_(*others, state.S, state.A, state.z, state.t, *settings)
    return o


def _fading_kernels(call: Arguments, held: Held, keep: bool, fresh: bool) -> Result:
    """Forgetting at the beat by kernels: in one operator, or in pieces of `directions` and then `memory`."""
    (q, k, v, u, beta, decay, strength, forget), t, cu_seqlens, (along, own) = call
    if at_chunks(along, fresh):
        return _kernels(call, held, keep)
    S, A, z, f = held
    solving = Arguments((k, u, strength, forget), t, cu_seqlens, (along,))
    a, (A, f) = fading_kernels(solving, [A, f], keep, fresh)
    writing = Arguments((q, k, v, a, beta, decay), t, cu_seqlens, (own,))
    o, (S, z) = kernel_form(writing, [S, z], keep)
    return o, [S, A, z, f]


_VLA = Mechanism(VLAState, _reference, vla_chunk, _kernels, decode=_decode, ranks=vla_over_ranks)
_FORGETTING = Mechanism(ForgettingState, _forgetting_reference, vla_forgetting_chunk, ranks=vla_over_ranks)
_FADING = {
    fresh: Mechanism(
        ForgettingState, _forgetting_reference, vla_forgetting_chunk, partial(_fading_kernels, fresh=fresh),
        decode=_decode_fading, ranks=vla_over_ranks,
    )
    for fresh in (False, True)
}  # fmt: skip
