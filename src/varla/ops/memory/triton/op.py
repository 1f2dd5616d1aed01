"""The kernels of `memory`: in chunks, as one PyTorch operator, or token by token (recurrent.py).

S <- d S (I - k a^T) + v a^T   with a = beta k: the delta rule
S <- d S + v a^T               with a = k: linear attention
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from varla.ops.custom_op import Arguments
from varla.ops.dispatch import Held, Result
from varla.ops.features import feature
from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton.launch import MemoryLauncher
from varla.ops.memory.triton.recurrent import recurrent_triton
from varla.ops.packing import sequence_of
from varla.ops.triton.features import scaled_features
from varla.ops.triton.op import KernelOperator

# Sequences of up to this many tokens go token by token: it takes fewer launches. Longer ones go in chunks
# (benchmarks/RESULTS.md).
RECURRENT_TOKENS = 64


def memory_kernels(call: Arguments, held: Held, keep: bool) -> Result:
    """Run the chunk or the recurrent kernels; see dispatch.Mechanism. Inputs q, k, v, a, beta, decay; state S, z."""
    (q, k, v, a, beta, decay), t, cu_seqlens, (settings,) = call
    S, z = held
    short = q.shape[0] * q.shape[1] <= RECURRENT_TOKENS * S.shape[0]
    if decay is None:  # token by token there is a normaliser only where z is a row of S
        recurrent = short and (not settings.normalizer or _z_is_a_row(beta, settings))
    else:  # in chunks, S decays before the prediction; token by token, there is no z that decays
        recurrent = (short or not settings.decay_first) and z is None
    if recurrent and a is None:
        return _recurrent(call, held, keep)
    if decay is not None and not settings.decay_first:
        raise RuntimeError(
            "backend='triton' cannot run here: with decay_first=False the kernels take no directions and keep no z; "
            "use 'chunk'"
        )
    # z sums features as they are: the kernels normalise keys themselves where z is kept.
    inside = settings.normalize_key and z is not None
    kind, normalize = settings.feature_map, settings.normalize_key
    (q,) = scaled_features(q, None, kind, settings.normalize_query, settings.scale_of(q.shape[-1]), v.dtype)
    (along,) = (a,) if a is not None else scaled_features(k, None, kind, normalize, 1.0, v.dtype)
    if a is None and not inside:
        k = along
    else:
        (k,) = scaled_features(k, None, kind, normalize and not inside, 1.0, v.dtype)
    prepared = replace(settings, feature_map="identity", normalize_query=False, normalize_key=inside, scale=1.0)
    summed = S.new_zeros(*S.shape[:2], S.shape[3], dtype=torch.float64) if z is None else z
    o, S, summed, *_ = memory_triton(q, k, v, along, beta, decay, S, summed, t, cu_seqlens, prepared, keep)
    return o, [S, None if z is None else summed]


def _recurrent(call: Arguments, held: Held, keep: bool) -> Result:
    """Token by token, with queries and keys in float32."""
    (q, k, v, _, beta, decay), t, cu_seqlens, (settings,) = call
    S, z = held
    kind, scale = settings.feature_map, settings.scale_of(q.shape[-1])
    (q,) = scaled_features(q, None, kind, settings.normalize_query, scale, torch.float32)
    (K,) = scaled_features(k, None, kind, settings.normalize_key, 1.0, torch.float32)
    gate = None if decay is None else decay.float().exp().expand(v.shape)
    strength = None if beta is None else beta[..., 0].float()
    if z is None or not _z_is_a_row(beta, settings):
        switches = settings.error, settings.decay_first
        o, S, *_ = recurrent_triton(q, K, v, gate, strength, S, t, cu_seqlens, *switches, keep)
        return o, [S, None if z is None else _summed(k.float(), z, cu_seqlens, kind)]
    # One more row of S, whose value is always 1: it reads z . q.
    values, rows = pad(v.float(), (0, 1), value=1.0), torch.cat((S, z[..., None, :].to(S.dtype)), 2)
    o, rows, *_ = recurrent_triton(q, K, values, gate, strength, rows, t, cu_seqlens, False, True, keep)
    o, along = o[..., :-1], o[..., -1:]
    o = o / along.clamp(min=settings.eps) if settings.normalizer else o
    return o.to(v.dtype), [rows[:, :, :-1], _summed(k.float(), z, cu_seqlens, kind)]


def _z_is_a_row(beta: Tensor | None, settings: MemorySettings) -> bool:
    """Whether S is written as z is: values, not errors, with full strength, along key features as they are."""
    return not settings.error and beta is None and not settings.normalize_key


def _summed(k: Tensor, z: Tensor, cu_seqlens: Tensor | None, kind: str) -> Tensor:
    """z [rows, H, D] plus the sum of every sequence's key features."""
    F = feature(k, kind)
    if cu_seqlens is None:
        return z + F.sum(1)
    return z.index_add(0, sequence_of(cu_seqlens.to(k.device), k.shape[1]), F[0].to(z.dtype))


memory_triton = KernelOperator("memory_triton", MemoryLauncher, MemorySettings).forward
