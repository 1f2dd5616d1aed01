"""Linear attention (Katharopoulos et al. 2020): S <- S + v phi(k)^T, o = S phi(q) / (z . phi(q))."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from varla.ops.call import Mechanism, run, run_step, short
from varla.ops.checks import check_inputs
from varla.ops.features import feature
from varla.ops.reference import apply, dot, outer
from varla.ops.settings import LinearAttentionSettings
from varla.ops.state import LinearAttentionState

# Up to so many tokens the kernels go token by token, beyond in chunks. On an H200, a training step of two layers in
# bfloat16, as a CUDA graph: 2.0 ms against 1.4 at 49 tokens (64 sequences of 4 heads of 32), 3.3 against 1.9 at
# 97 (2 of 64), 9.8 against 4.6 at 385. Launched one by one, fewer kernels are ahead up to 64 tokens (2.6 against 2.9).
# (Before queries and keys were made ready by a kernel, which spares both ways the same.)
KERNEL_TOKENS = 64


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    eps: float = 1e-4,
    feature_map: str = "elu1",
    normalizer: bool = True,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Any:
    """Causal linear attention in the contract of `varla.vla`, whose arguments of the same name mean the same.

    q, k [B, T, H, D], raw; v [B, T, H, Dv]. Backends "reference", "chunk", "triton" (on a GPU;
    token by token, or in chunks where long) and "auto".
    Returns o [B, T, H, Dv] in the inputs' type, or (o, LinearAttentionState) with `return_state`.
    """
    (q, k, v), sizes = check_inputs({"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv")})
    return run(
        _LINEAR,
        (q, k, v),
        sizes,
        LinearAttentionSettings(eps, feature_map, normalizer),
        initial_state=initial_state,
        return_state=return_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        chunk_size=chunk_size,
    )


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearAttentionState | None = None,
    *,
    eps: float = 1e-4,
    feature_map: str = "elu1",
    normalizer: bool = True,
) -> tuple[Tensor, LinearAttentionState]:
    """One token: q, k [B, H, D], v [B, H, Dv]. Returns (o [B, H, Dv], state); the state handed in is not changed."""
    (q, k, v), sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv")})
    return run_step(_LINEAR, (q, k, v), sizes, LinearAttentionSettings(eps, feature_map, normalizer), state)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, state: LinearAttentionState, settings: LinearAttentionSettings
) -> tuple[Tensor, LinearAttentionState]:
    """The paper's eq. (linear-attn), with S as values by keys."""
    S, z, t = state.S, state.z, state.t
    outputs = []
    for q_t, k_t, v_t in zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v)), strict=True):
        q_feat, k_feat = feature(q_t, settings.feature_map), feature(k_t, settings.feature_map)
        S, z, t = S + outer(v_t, k_feat), z + k_feat, t + 1
        o = apply(S, q_feat)
        outputs.append(o / dot(z, q_feat).clamp(min=settings.eps) if settings.normalizer else o)
    return torch.stack(outputs, 1).to(v.dtype), LinearAttentionState(S, z, t)


def _kernels(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: LinearAttentionSettings,
    keep: bool,
) -> list[Tensor]:
    """Token by token for short sequences, else in chunks.

    In the former, the normaliser is one more row of S, whose value is always 1: it becomes z, and reads z . q.
    """
    from varla.ops.triton import chunks_triton, directions, rows_triton

    q, k, v = inputs
    S, z = state
    in_chunks = not short(q, S, KERNEL_TOKENS)
    dtype = v.dtype if in_chunks else torch.float32
    q, k = (directions(x, None, settings.feature_map, False, 1.0, dtype)[0] for x in (q, k))
    if in_chunks:
        o, S, z, *_ = chunks_triton(q, k, v, k, S, z, cu_seqlens, settings.eps, settings.normalizer, False, keep)
        return [o, S, z]
    extended = pad(v.float(), (0, 1), value=1.0)
    o, after, *_ = rows_triton(q, k, extended, None, None, torch.cat((S, z[..., None, :]), 2), cu_seqlens, False, keep)
    o, along = o[..., :-1], o[..., -1:]
    o = o / along.clamp(min=settings.eps) if settings.normalizer else o
    return [o.to(v.dtype), after[:, :, :-1], after[:, :, -1]]


_LINEAR = Mechanism("linear_attention", LinearAttentionState, {"reference": _reference}, kernels=_kernels)
