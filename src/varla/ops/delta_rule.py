"""The delta rule (DeltaNet, Yang et al. 2024): S <- S (I - beta k k^T) + beta v k^T, o = S q.

This is not what the VLA paper calls DeltaNet, which decays S by a gate and writes with full strength.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from varla.ops.call import Mechanism, run, run_step, short
from varla.ops.checks import check_inputs
from varla.ops.features import feature, unit
from varla.ops.reference import apply, outer
from varla.ops.settings import DeltaRuleSettings
from varla.ops.state import DeltaRuleState

# Up to so many tokens the kernels go token by token, beyond in chunks. On an H200, a training step of two layers in
# bfloat16, as a CUDA graph: 2.1 ms against 1.8 at 49 tokens (64 sequences of 4 heads of 32), 3.1 against 2.4 at
# 97 (2 of 64), 8.9 against 6.0 at 385. Launched one by one, fewer kernels are ahead up to 64 tokens (3.3 against 3.7).
# (Before queries and keys were made ready by a kernel, which spares both ways the same.)
KERNEL_TOKENS = 64


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    feature_map: str = "identity",
    normalize_query: bool = True,
    normalize_key: bool = True,
    scale: float | None = None,
    initial_state: DeltaRuleState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Any:
    """The delta rule in the contract of `varla.vla`, whose arguments of the same name mean the same.

    Args:
        q: queries [B, T, H, D], raw.
        k: keys [B, T, H, D], raw.
        v: values [B, T, H, Dv].
        beta: write strengths [B, T, H], usually in (0, 1): 0 writes nothing, 1 replaces what the key held.
        feature_map: "identity" or "elu1", before the normalisations. (Yang et al. use SiLU: apply it to q and k.)
        normalize_query: divide queries by their length.
        normalize_key: divide keys by their length; without it the recurrence can diverge for |k|^2 beta > 2.
        scale: factor on the queries. None: D ** -0.5, as in flash-linear-attention.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (on a GPU; token by token, or in chunks where long) or "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, DeltaRuleState) with `return_state`.
    """
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "beta": (beta, "B T H")}
    )
    return run(
        _DELTA,
        (q, k, v, beta[..., None]),
        sizes,
        _settings(feature_map, normalize_query, normalize_key, scale, sizes["D"]),
        initial_state=initial_state,
        return_state=return_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        chunk_size=chunk_size,
    )


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: DeltaRuleState | None = None,
    *,
    feature_map: str = "identity",
    normalize_query: bool = True,
    normalize_key: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], beta [B, H]. Returns (o [B, H, Dv], state); `state` is not changed."""
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "beta": (beta, "B H")}
    )
    settings = _settings(feature_map, normalize_query, normalize_key, scale, sizes["D"])
    return run_step(_DELTA, (q, k, v, beta[..., None]), sizes, settings, state)


def _settings(
    feature_map: str, normalize_query: bool, normalize_key: bool, scale: float | None, D: int
) -> DeltaRuleSettings:
    return DeltaRuleSettings(feature_map, normalize_query, normalize_key, D**-0.5 if scale is None else scale)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: DeltaRuleState, settings: DeltaRuleSettings
) -> tuple[Tensor, DeltaRuleState]:
    """One token at a time; beta [B, T, H, 1]."""
    S, t = state.S, state.t
    outputs = []
    for q_t, k_t, v_t, b_t in zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v, beta)), strict=True):
        q_hat, k_hat = feature(q_t, settings.feature_map), feature(k_t, settings.feature_map)
        q_hat = unit(q_hat)[0] if settings.normalize_query else q_hat
        k_hat = unit(k_hat)[0] if settings.normalize_key else k_hat
        S, t = S + outer(v_t - apply(S, k_hat), b_t * k_hat), t + 1
        outputs.append(apply(S, q_hat * settings.scale))
    return torch.stack(outputs, 1).to(v.dtype), DeltaRuleState(S, t)


def _kernels(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: DeltaRuleSettings,
    keep: bool,
) -> list[Tensor]:
    """Token by token for short sequences, else in chunks."""
    from varla.ops.triton import chunks_triton, directions, rows_triton

    q, k, v, beta = inputs
    (S,) = state
    in_chunks = not short(q, S, KERNEL_TOKENS)
    dtype = v.dtype if in_chunks else torch.float32
    (q,) = directions(q, None, settings.feature_map, settings.normalize_query, settings.scale, dtype)
    k, *a = directions(k, beta if in_chunks else None, settings.feature_map, settings.normalize_key, 1.0, dtype)
    if not in_chunks:
        found: list[Tensor] = rows_triton(q, k, v, None, beta[..., 0].float(), S, cu_seqlens, True, keep)
        return found
    none = S.new_zeros(*S.shape[:2], S.shape[3])  # there is no normaliser
    o, S, *_ = chunks_triton(q, k, v, *a, S, none, cu_seqlens, 1.0, False, True, keep)
    return [o, S]


_DELTA = Mechanism("delta_rule", DeltaRuleState, {"reference": _reference}, kernels=_kernels)
