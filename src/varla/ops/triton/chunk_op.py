"""Linear attention and the delta rule in chunks, as one PyTorch operator: the S part of VLA along other directions.

    S <- S (I - k a^T) + v a^T   with a = beta k: the delta rule
    S <- S + v a^T               with a = k: linear attention

Queries, keys and directions come as S meets them: feature map, normalisation and strengths are `feature_op`'s business.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from varla.ops.backends import triton_interpreted
from varla.ops.chunk.op import refuse_double_backward
from varla.ops.operator import operator
from varla.ops.packing import sequence_bounds
from varla.ops.settings import VLASettings
from varla.ops.triton.ahead import compile_ahead
from varla.ops.triton.configuration import Inputs, Kept, Precision, Shape
from varla.ops.triton.plan import CHUNK, on_device, parts, plan_for
from varla.ops.triton.s_part import SPart


def _part(
    q: Tensor, v: Tensor, cu_seqlens: Tensor | None, eps: float, normalizer: bool, error: bool, backward: bool
) -> SPart:
    B, T, H, D = q.shape
    lengths = (T,) * B if cu_seqlens is None else tuple(sequence_bounds(cu_seqlens, T)[1])
    precision = Precision.of(q.dtype, D, triton_interpreted())
    capability = torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 9
    shape = Shape.of(H, D, v.shape[-1], precision.buffer, capability)
    plan = plan_for(lengths, H, q.device)
    # Of VLA's settings the S part has the normaliser; a comes from outside, and so do features.
    settings = VLASettings(1.0, None, 0.0, float(eps), "raw", "identity", 1.0, normalizer, False, False)
    part = SPart(plan, shape, precision, settings, error=error)
    if q.is_cuda:
        compile_ahead(part, q.dtype, q.device, backward)
    return part


def _flat(x: Tensor) -> Tensor:
    """[B, T, H, *] as [tokens, H, *]."""
    return x.flatten(0, 1).contiguous()


def _buffers(q: Tensor, v: Tensor, sequences: int, packed: bool, error: bool) -> list[Tensor]:
    """Empty: denominators [tokens, H]; T^-1 and W [chunks, H, 64, 64]; E, S0 and z0. See configuration.Kept."""
    B, T, H, D = q.shape
    buffer = Precision.of(q.dtype, D, triton_interpreted()).buffer
    chunks = T // CHUNK + sequences if packed else B * parts(T, CHUNK)
    solved = chunks if error else 0
    return [
        q.new_empty(B * T, H, dtype=torch.float32),
        q.new_empty(solved, H, CHUNK, CHUNK, dtype=buffer),
        q.new_empty(chunks, H, CHUNK, CHUNK, dtype=buffer),
        q.new_empty(B * T if error else 0, H, v.shape[-1], dtype=buffer),
        q.new_empty(chunks, H, v.shape[-1], D, dtype=buffer),
        q.new_empty(chunks, H, D, dtype=torch.float32),
    ]


def _kept(a: Tensor, v: Tensor, buffers: Sequence[Tensor], error: bool) -> Kept:
    """As the S part has it. Without an error, E are the values. What is not there is not read."""
    denominator, tinv, W, E, S0, z0 = buffers
    none = denominator
    a = a.to(S0.dtype)
    return Kept(a, none, none, denominator, tinv, W, E if error else v, S0, z0, none, none)


def _chunks_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    S: Tensor,
    z: Tensor,
    cu_seqlens: Tensor | None,
    eps: float,
    normalizer: bool,
    error: bool,
    keep: bool,
) -> list[Tensor]:
    """[o, final S, final z, *what the backward needs] of q, k, a [B, T, H, D] and v [B, T, H, Dv], all of one type.

    S [rows, H, Dv, D] and z [rows, H, D] are float32. The last part is left out unless `keep`.
    """
    buffers = _buffers(q, v, S.shape[0], cu_seqlens is not None, error)
    extra = buffers if keep else []
    if q.numel() == 0:
        return [torch.empty_like(v), S.clone(), z.clone(), *extra]
    with on_device(q):
        x = Inputs(_flat(q), _flat(k), _flat(v), _flat(a))
        kept = _kept(x.u, x.v, buffers, error)
        part = _part(q, v, cu_seqlens, eps, normalizer, error, keep)
        o, *final = part.write_and_read(x, kept, S.contiguous(), z.contiguous())
    return [o.view(v.shape), *final, *extra]


def _chunks_triton_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    S: Tensor,
    z: Tensor,
    cu_seqlens: Tensor | None,
    eps: float,
    normalizer: bool,
    error: bool,
    keep: bool,
) -> list[Tensor]:
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (v, S, z)]
    return [*found, *(_buffers(q, v, S.shape[0], cu_seqlens is not None, error) if keep else [])]


def _chunks_triton_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    cu_seqlens: Tensor | None,
    eps: float,
    normalizer: bool,
    error: bool,
    buffers: Sequence[Tensor],
    do: Tensor,
    dS: Tensor,
    dz: Tensor,
) -> list[Tensor]:
    """Gradients of q, k, v, a, and of the initial S and z."""
    if q.numel() == 0:
        return [*(torch.zeros_like(x) for x in (q, k, v, a)), dS.clone(), dz.clone()]
    with on_device(q):
        x = Inputs(_flat(q), _flat(k), _flat(v), _flat(a))
        kept = _kept(x.u, x.v, buffers, error)
        part = _part(q, v, cu_seqlens, eps, normalizer, error, True)
        g = part.back(x, kept, _flat(do), dS.contiguous(), dz.contiguous(), by_chunk=False)
    given = zip((g.dq, g.dk, g.dv, g.da), (q, k, v, a), strict=True)
    return [*(found.to(like.dtype).view(like.shape) for found, like in given), g.dS, g.dz]


def _chunks_triton_backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    cu_seqlens: Tensor | None,
    eps: float,
    normalizer: bool,
    error: bool,
    buffers: Sequence[Tensor],
    do: Tensor,
    dS: Tensor,
    dz: Tensor,
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, a, dS, dz)]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, a, S, z, cu_seqlens, eps, normalizer, error, _ = inputs
    ctx.settings = eps, normalizer, error
    ctx.set_materialize_grads(False)  # else zeros for everything kept
    ctx.save_for_backward(q, k, v, a, S, z, cu_seqlens, *output[3:])


def _backward(ctx, grads):  # type: ignore[no-untyped-def]
    q, k, v, a, S, z, cu_seqlens, *buffers = ctx.saved_tensors
    do, dS, dz = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, (v, S, z), strict=False))
    found = chunks_triton_backward(q, k, v, a, cu_seqlens, *ctx.settings, buffers, do, dS, dz)
    return *found, None, None, None, None, None


chunks_triton = operator("chunks_triton", _chunks_triton, _chunks_triton_fake, _backward, _setup_context)
chunks_triton_backward = operator(
    "chunks_triton_backward", _chunks_triton_backward, _chunks_triton_backward_fake, refuse_double_backward("triton")
)
