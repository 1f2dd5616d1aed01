"""`varla.vla` and `varla.vla_step`: `directions`, then `memory`, as one operator. It is Algorithm 1 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from varla.arguments import refuse_unknown
from varla.ops.checks import check_inputs, check_untracked
from varla.ops.directions.reference import directions_reference
from varla.ops.directions.settings import DirectionOptions, DirectionSettings
from varla.ops.dispatch import (
    CALL,
    CallOptions,
    Held,
    Mechanism,
    Result,
    accepts,
    defaults_of,
    run,
    run_step,
    settings_of,
    split,
)
from varla.ops.fused.chunk import vla_chunk
from varla.ops.memory.reference import memory_reference
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import VLAState


class VLAOptions(DirectionOptions, total=False):
    """The scalars of `varla.vla`, for type checkers; see `VLASettings`."""

    eps: float
    normalizer: bool


@dataclass(frozen=True)
class VLASettings(DirectionSettings):
    """The scalars of VLA. The function, the step, the layer and the configurations all read them here.

    They are those of `directions`, and two of `memory`. Both have feature_map and normalize_key, with the same value.
    """

    eps: float = MemorySettings.eps
    normalizer: bool = MemorySettings.normalizer

    # The settings of `directions` and of `memory`.
    halves: tuple[DirectionSettings, MemorySettings] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the settings of `directions` and of `memory`, which check every value."""
        along = {name: getattr(self, name) for name in _ALONG}
        held = {name: getattr(self, name) for name in _HELD}
        object.__setattr__(self, "halves", (DirectionSettings(**along), MemorySettings(**held)))


# The scalars of `directions` and of `memory`. torch.compile cannot read the fields of a dataclass.
SCALARS = defaults_of(VLASettings)
_ALONG, _HELD = (
    [name for name in defaults_of(kind) if name in SCALARS] for kind in (DirectionSettings, MemorySettings)
)


class VLACall(VLAOptions, CallOptions, total=False):
    """The keywords of `varla.vla`, for type checkers."""

    initial_state: VLAState | None


@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[False] = False, **options: Unpack[VLACall]
) -> Tensor: ...
@overload
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: Literal[True], **options: Unpack[VLACall]
) -> tuple[Tensor, VLAState]: ...
@accepts(CALL, SCALARS)
def vla(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, *, return_state: bool = False, **options: Unpack[VLACall]
) -> Tensor | tuple[Tensor, VLAState]:
    """Variational Linear Attention: Algorithm 1 of the paper. Every backend computes it exactly.

        a = directions(k, u)        A <- A - A u u^T A / (1 + u^T A u),   a = A k / |A k|
        o = memory(q, k, v, a)      S <- S + (v - S k) a^T,   z <- z + k,   o = S q / max(q . z, eps)

    Args:
        q: queries [B, T, H, D], raw: the feature map is applied inside.
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        v: values [B, T, H, Dv].
        u: penalty directions [B, T, H, D], raw: normalised inside. A zero u does not change A.
        initial_state: the state to start from, with one row for each sequence. None: S = 0, A = I / lambda0, z = 0.
        return_state: also return the state after the last token.
        cu_seqlens: offsets [N + 1] of N sequences packed into B = 1. Packed sequences do not affect each other.
        backend: "reference", "chunk", "triton" or "auto"; see `varla.backends()`.
        chunk_size: tokens in a chunk, for backend "chunk". None: chosen by D. Any value gives the same result.
        lambda0: initial penalty; the initial A is I / lambda0. Not used with `initial_state`. Relative errors grow like
            |u|^2 / lambda0, so float32 states need lambda0 >= 0.001 |u|^2, and float64 ones 2e-12 |u|^2.
        refresh_every: period of the refresh A <- A + eta I, in tokens of a sequence. Tokens of earlier calls count,
            through the state. None: no refresh.
        refresh: size eta of the refresh.
        eps: smallest denominator.
        gain: how the write direction a follows from A k. "unit" divides by |A k| (the paper). "projection" divides by
            k . A k, so that S k = v holds for the newest pair. "raw" is A k itself (VLAv2; with u = k, classical
            recursive least squares).
        feature_map: "elu1" (ELU + 1), or "identity" if q and k are features already.
        penalty_scale: length of u after normalisation. None: D ** -0.5, as in Algorithm 1; 1.0: as in the paper's eq.
            (penalty).
        normalizer: divide outputs by max(q . z, eps). False: o = S q.
        normalize_key: normalise key features to unit length for S. False: the paper's ablation.
        update_penalty: False keeps A at its initial value, without refresh: the paper's ablation.

    NaN or infinity in k, v or u makes the later outputs of its row and head NaN. In the kernels it also reaches earlier
    tokens of the same chunk of 64, because their products run over whole chunks.

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, VLAState) with `return_state`.
    """
    call, own = split(options, SCALARS)
    settings = settings_of(VLASettings, own).halves
    (q, k, v, u), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "u": (u, "B T H D")}
    )
    return run(_VLA, (q, k, v, u), sizes, settings, return_state, **call)


@accepts(SCALARS)
def vla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    state: VLAState | None = None,
    *,
    inplace: bool = False,
    backend: str = "auto",
    **options: Unpack[VLAOptions],
) -> tuple[Tensor, VLAState]:
    """One token of `vla`, in constant memory. The options are those of `vla`.

    q, k, u [B, H, D], v [B, H, Dv]; `state` None begins a sequence. Returns (o [B, H, Dv], state).

    Args:
        inplace: False does not change the given state. True updates and returns it, without a copy, so that a CUDA
            graph can capture the call. The state's tensors must be contiguous. No tensor may require grad, except under
            torch.no_grad().
        backend: "reference" (the loop, with derivatives), "triton" (one kernel for all rows and heads, without
            derivatives), or "auto": the kernel on a GPU if no gradients are needed, else the loop.
    """
    for name in options.keys() - SCALARS.keys():
        refuse_unknown("option", name, ["inplace", "backend", *SCALARS], error=TypeError)
    settings = settings_of(VLASettings, options).halves
    (q, k, v, u), sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "u": (u, "B H D")})
    if inplace:
        check_untracked("an update in place keeps nothing for a backward", {"q": q, "k": k, "v": v, "u": u})
    return run_step(_VLA, (q, k, v, u), sizes, settings, state, backend=backend, inplace=inplace)


def _reference(
    inputs: Sequence[Any], held: Held, t: Tensor, along: DirectionSettings, settings: MemorySettings
) -> Result:
    """Algorithm 1: the loop of `directions`, then that of `memory`."""
    q, k, v, u = inputs
    S, A, z = held
    a, A = directions_reference(k, u, A, t, along)
    o, S, z = memory_reference(q, k, v, a, None, None, S, z, settings)
    return o, [S, A, z]


def _kernels(
    inputs: Sequence[Any], held: Held, t: Tensor, cu_seqlens: Tensor | None, settings: Sequence[Any], keep: bool
) -> Result:
    from varla.ops.fused.triton.op import vla_triton

    dtype = inputs[0].dtype
    if dtype != torch.float32 and settings[0].needs_float32(inputs[0].shape[-1]):
        inputs = [x.float() for x in inputs]
    o, S, A, z, *_ = vla_triton(*inputs, *held, t, cu_seqlens, *settings, keep)
    return o.to(dtype), [S, A, z]


def _decode(inputs: Sequence[Any], state: VLAState, settings: Sequence[Any]) -> Tensor:
    from varla.ops.fused.triton.decode import decode_

    o: Tensor = decode_(*inputs, *state.tensors().values(), *settings)
    return o


_VLA = Mechanism(VLAState, _reference, vla_chunk, _kernels, decode=_decode)
