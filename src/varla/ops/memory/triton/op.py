"""The kernels of `memory`: in chunks, as one PyTorch operator, or token by token (recurrent.py).

S <- S (I - k a^T) + v a^T   with a = beta k: the delta rule
S <- S + v a^T               with a = k: linear attention
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from varla.ops.custom_op import operator, refuse_double_backward
from varla.ops.dispatch import Held, Result
from varla.ops.features import feature
from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton.launch import Kept, MemoryLauncher, Tokens
from varla.ops.memory.triton.recurrent import recurrent_triton
from varla.ops.packing import packed_lengths, sequence_of
from varla.ops.triton.features import scaled_features
from varla.ops.triton.launcher import Precision, Shape, capability_of, flat, parts_needed
from varla.ops.triton.plan import Plan, make_plan, span_length
from varla.ops.triton.precompile import precompile

# Sequences of up to this many tokens go token by token: it takes fewer launches. Longer ones go in chunks
# (benchmarks/RESULTS.md).
RECURRENT_TOKENS = 64


def memory_kernels(
    inputs: Sequence[Any], held: Held, cu_seqlens: Tensor | None, settings: MemorySettings, keep: bool
) -> Result:
    """Run the chunk or the recurrent kernels; see dispatch.Mechanism. Inputs q, k, v, a, beta, log_gate; state S, z."""
    q, k, v, a, beta, log_gate = inputs
    S, z = held
    short = q.shape[0] * q.shape[1] <= RECURRENT_TOKENS * S.shape[0]
    # Token by token there is a normaliser only where z is a row of S.
    recurrent = short and a is None and (not settings.normalizer or _z_is_a_row(beta, settings))
    scale = settings.scale_of(q.shape[-1])
    if log_gate is not None or recurrent:
        return _recurrent(q, k, v, beta, log_gate, S, z, cu_seqlens, settings, scale, keep)
    # z sums features as they are: the kernels normalise keys themselves where z is kept.
    inside = settings.normalize_key and z is not None
    kind, normalize = settings.feature_map, settings.normalize_key
    (q,) = scaled_features(q, None, kind, settings.normalize_query, scale, v.dtype)
    if a is None:
        K, *scaled = scaled_features(k, beta, kind, normalize, 1.0, v.dtype)
        along = scaled[0] if scaled else K
    else:
        along = a if beta is None else beta * a
    if a is None and not inside:
        k = K
    else:
        (k,) = scaled_features(k, None, kind, normalize and not inside, 1.0, v.dtype)
    prepared = replace(settings, feature_map="identity", normalize_query=False, normalize_key=inside, scale=1.0)
    summed = S.new_zeros(*S.shape[:2], S.shape[3]) if z is None else z
    o, S, summed, *_ = memory_triton(q, k, v, along, S, summed, cu_seqlens, prepared, keep)
    return o, [S, None if z is None else summed]


def _recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_gate: Tensor | None,
    S: Tensor,
    z: Tensor | None,
    cu_seqlens: Tensor | None,
    settings: MemorySettings,
    scale: float,
    keep: bool,
) -> Result:
    """Token by token, with queries and keys in float32."""
    kind = settings.feature_map
    (q,) = scaled_features(q, None, kind, settings.normalize_query, scale, torch.float32)
    (K,) = scaled_features(k, None, kind, settings.normalize_key, 1.0, torch.float32)
    gate = None if log_gate is None else log_gate.float().exp().expand(v.shape)
    strength = None if beta is None else beta[..., 0].float()
    if z is None or not _z_is_a_row(beta, settings):
        o, S, *_ = recurrent_triton(q, K, v, gate, strength, S, cu_seqlens, settings.error, keep)
        return o, [S, None if z is None else _summed(k.float(), z, cu_seqlens, kind)]
    # One more row of S, whose value is always 1: it becomes z, and reads z . q.
    values, rows = pad(v.float(), (0, 1), value=1.0), torch.cat((S, z[..., None, :]), 2)
    o, rows, *_ = recurrent_triton(q, K, values, gate, strength, rows, cu_seqlens, False, keep)
    o, along = o[..., :-1], o[..., -1:]
    o = o / along.clamp(min=settings.eps) if settings.normalizer else o
    return o.to(v.dtype), [rows[:, :, :-1], rows[:, :, -1]]


def _z_is_a_row(beta: Tensor | None, settings: MemorySettings) -> bool:
    """Whether S is written as z is: values, not errors, with full strength, along key features as they are."""
    return not settings.error and beta is None and not settings.normalize_key


def _summed(k: Tensor, z: Tensor, cu_seqlens: Tensor | None, kind: str) -> Tensor:
    """z [rows, H, D] plus the sum of every sequence's key features."""
    F = feature(k, kind)
    if cu_seqlens is None:
        return z + F.sum(1)
    return z.index_add(0, sequence_of(cu_seqlens.to(k.device), k.shape[1]), F[0])


@lru_cache(maxsize=64)
def launcher(
    lengths: tuple[int, ...],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    settings: MemorySettings,
    backward: bool,
) -> MemoryLauncher:
    """The launcher for sequences of these lengths and sizes (H, D, DV), with compiled kernels."""
    H, D, DV = sizes
    precision = Precision.of(dtype, D)
    shape = Shape.of(H, D, DV, precision.buffer, capability_of(device))
    found = MemoryLauncher(make_plan(lengths, span_length(sum(lengths), H), device), shape, precision, settings)

    def rehearse(tokens: int, plan: Plan, started: list[Any]) -> None:
        replace(found, plan=plan, dry=started).rehearse(tokens, dtype, device, backward)

    if device.type == "cuda":
        switches = tuple(found._switches["finish"].values())
        precompile(("memory", shape, precision, switches, dtype, device), rehearse, H, device, backward)
    return found


def _kept(q: Tensor, v: Tensor, sequences: int, packed: bool, settings: MemorySettings) -> Kept:
    """Empty buffers for what the forward keeps. Their sizes depend on shapes alone."""
    B, T, H, D = q.shape
    buffer = Precision.of(q.dtype, D).buffer
    return Kept.empty(q.flatten(0, 1), v.shape[-1], parts_needed(B, T, H, sequences, packed)[0], buffer, settings)


def _prepared(
    inputs: Sequence[Tensor], cu_seqlens: Tensor | None, settings: MemorySettings, backward: bool
) -> tuple[MemoryLauncher, Tokens]:
    """The launcher for q, k, v and a, and the four as the kernels take them."""
    q, k, v, a = inputs
    B, T, H, D = q.shape
    lengths = (T,) * B if cu_seqlens is None else packed_lengths(cu_seqlens, T)
    found = launcher(lengths, (H, D, v.shape[-1]), q.dtype, q.device, settings, backward)
    found.hold()
    return found, Tokens(flat(q), flat(k), flat(v), flat(a).to(found.precision.buffer))


def _memory_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    S: Tensor,
    z: Tensor,
    cu_seqlens: Tensor | None,
    settings: MemorySettings,
    keep: bool,
) -> list[Tensor]:
    """[o, S, z, *Kept] from q, k, a [B, T, H, D] and v [B, T, H, Dv], all of one dtype; without `keep` only [o, S, z].

    S [rows, H, Dv, D] and z [rows, H, D] are float32.
    """
    kept = _kept(q, v, S.shape[0], cu_seqlens is not None, settings)
    extra = list(kept) if keep else []
    if q.numel() == 0:
        return [torch.empty_like(v), S.clone(), z.clone(), *extra]
    with torch.cuda.device_of(q):
        found, x = _prepared((q, k, v, a), cu_seqlens, settings, keep)
        o, S, z = found.forward(x, kept, S.contiguous(), z.contiguous())
    return [o.view(v.shape), S, z, *extra]


def _fake(q, k, v, a, S, z, cu_seqlens, settings, keep):
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (v, S, z)]
    return [*found, *(_kept(q, v, S.shape[0], cu_seqlens is not None, settings) if keep else [])]


def _memory_triton_backward(
    inputs: Sequence[Tensor],
    cu_seqlens: Tensor | None,
    settings: MemorySettings,
    buffers: Sequence[Tensor],
    do: Tensor,
    dS: Tensor,
    dz: Tensor,
) -> list[Tensor]:
    """Gradients of q, k, v, a and of the initial S and z."""
    q = inputs[0]
    if q.numel() == 0:
        return [*(torch.zeros_like(x) for x in inputs), dS.clone(), dz.clone()]
    with torch.cuda.device_of(q):
        found, x = _prepared(inputs, cu_seqlens, settings, True)
        g = found.backward(x, Kept(*buffers), flat(do), dS.contiguous(), dz.contiguous())
    dinputs = zip((g.dq, g.dk, g.dv, g.da), inputs, strict=True)
    return [*(grad.to(like.dtype).view(like.shape) for grad, like in dinputs), g.dS, g.dz]


def _backward_fake(inputs, *others):
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*inputs, *others[-2:])]


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    *tensors, cu_seqlens, ctx.settings, _ = inputs
    ctx.set_materialize_grads(False)  # else PyTorch allocates zero gradients for everything kept
    ctx.save_for_backward(*tensors, cu_seqlens, *output[3:])


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    q, k, v, a, S, z, cu_seqlens, *buffers = ctx.saved_tensors
    do, dS, dz = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, (v, S, z), strict=False))
    found = memory_triton_backward([q, k, v, a], cu_seqlens, ctx.settings, buffers, do, dS, dz)
    return *found, None, None, None


memory_triton_backward = operator(
    "memory_triton_backward", _memory_triton_backward, _backward_fake, refuse_double_backward("triton")
)
memory_triton = operator("memory_triton", _memory_triton, _fake, _backward, _setup_context)
