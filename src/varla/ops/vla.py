"""`varla.vla` and `varla.vla_step`: the public operator."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from varla.ops import reference, scan
from varla.ops.call import Mechanism, run, run_step
from varla.ops.checks import check_inputs, check_untracked
from varla.ops.chunk import encode
from varla.ops.settings import VLASettings
from varla.ops.state import VLAState


def vla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    lambda0: float = 0.1,
    refresh_every: int | None = 20,
    refresh: float = 1e-3,
    eps: float = 1e-4,
    gain: str = "unit",
    feature_map: str = "elu1",
    penalty_scale: float | None = None,
    normalizer: bool = True,
    normalize_key: bool = True,
    update_penalty: bool = True,
    initial_state: VLAState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Any:
    """Variational Linear Attention: Algorithm 1 of the paper, exactly, in the form of your choice.

    Args:
        q: queries [B, T, H, D], raw: the feature map is applied inside.
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        v: values [B, T, H, Dv].
        u: penalty directions [B, T, H, D], raw: normalised inside. A zero u leaves A alone.
        lambda0: initial penalty; a fresh A is I / lambda0. Unused where `initial_state` is given.
        refresh_every: A gains `refresh` times the identity after every so many tokens of a sequence, counted over all
            calls that its state went through. None: never.
        refresh: size of that refresh (eta).
        eps: least denominator.
        gain: write direction from A k: "unit" divides by |A k| (the paper), "projection" by k . A k (then S k = v
            holds for the newest pair), "raw" by nothing (VLAv2; with u = k, classical recursive least squares).
        feature_map: "elu1" (ELU + 1), or "identity" if q and k are features already.
        penalty_scale: length that u is normalised to. None: D ** -0.5, as in Algorithm 1; 1.0: as in the paper's eq.
            (penalty).
        normalizer: divide outputs by max(q . z, eps). False: o = S q.
        normalize_key: normalise key features to unit length for S. False: the paper's ablation.
        update_penalty: False holds A at its initial value: the paper's ablation. There is no refresh then.
        initial_state: where to go on from; with packed sequences, one row for each.
        return_state: also return the state after the last token.
        cu_seqlens: [N + 1] offsets that pack N sequences into B = 1; each behaves as if it were alone.
        backend: "reference", "scan", "chunk", "triton" or "auto"; see `varla.backends()`.
        chunk_size: tokens in a chunk, for backend "chunk". None: chosen by D. Any value gives the same result.

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, VLAState) with `return_state`.
    """
    (q, k, v, u), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "u": (u, "B T H D")}
    )
    settings = VLASettings(
        lambda0=lambda0,
        refresh_every=refresh_every,
        refresh=refresh,
        eps=eps,
        gain=gain,
        feature_map=feature_map,
        penalty_scale=sizes["D"] ** -0.5 if penalty_scale is None else penalty_scale,
        normalizer=normalizer,
        normalize_key=normalize_key,
        update_penalty=update_penalty,
    )
    return run(
        _VLA,
        (q, k, v, u),
        sizes,
        settings,
        initial_state=initial_state,
        return_state=return_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        chunk_size=chunk_size,
    )


def vla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    state: VLAState | None = None,
    *,
    lambda0: float = 0.1,
    refresh_every: int | None = 20,
    refresh: float = 1e-3,
    eps: float = 1e-4,
    gain: str = "unit",
    feature_map: str = "elu1",
    penalty_scale: float | None = None,
    normalizer: bool = True,
    normalize_key: bool = True,
    update_penalty: bool = True,
    inplace: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, VLAState]:
    """One token of `vla`, in constant memory. The arguments mean what they mean there, but for these two.

    q, k, u [B, H, D], v [B, H, Dv]; `state` None begins a sequence. Returns (o [B, H, Dv], state).

    Args:
        inplace: False leaves the state handed in as it was. True updates it, and returns it: no second copy of it is
            made, and on CUDA the call can be captured in a CUDA graph. Its tensors must be contiguous, and nothing may
            require grad (outside torch.no_grad()).
        backend: "reference" (the loop, with derivatives), "triton" (one kernel for all rows and heads, without), or
            "auto": the kernel, on a GPU and without gradients; else the loop.
    """
    (q, k, v, u), sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "u": (u, "B H D")})
    settings = VLASettings(
        lambda0=lambda0,
        refresh_every=refresh_every,
        refresh=refresh,
        eps=eps,
        gain=gain,
        feature_map=feature_map,
        penalty_scale=sizes["D"] ** -0.5 if penalty_scale is None else penalty_scale,
        normalizer=normalizer,
        normalize_key=normalize_key,
        update_penalty=update_penalty,
    )
    if inplace:
        check_untracked("an update in place keeps nothing for a backward", {"q": q, "k": k, "v": v, "u": u})
    return run_step(_VLA, (q, k, v, u), sizes, settings, state, backend=backend, inplace=inplace)


def _initial(sizes: Mapping[str, int], settings: VLASettings, dtype: torch.dtype, device: torch.device) -> VLAState:
    """S = 0, A = I / lambda0, z = 0, t = 0 (lines 1 to 3 of Algorithm 1)."""
    state = VLAState.zeros(sizes, dtype, device)
    state.A.diagonal(dim1=-2, dim2=-1).fill_(1 / settings.lambda0)
    return state


def _kernels(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: VLASettings,
    keep: bool,
) -> list[Tensor]:
    from varla.ops.triton import vla_triton

    found: list[Tensor] = vla_triton(list(inputs), state, t, cu_seqlens, encode(settings), keep)
    return found


_LOOPS = {"reference": reference.vla_reference, "scan": scan.vla_scan}
_VLA = Mechanism("vla", VLAState, _LOOPS, _initial, _kernels, decodes=True)
