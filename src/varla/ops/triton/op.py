"""The kernels as one PyTorch operator, with a hand-written backward, like varla/ops/chunk/op.py."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from varla.ops.backends import triton_interpreted
from varla.ops.chunk.op import decode, refuse_double_backward
from varla.ops.operator import operator
from varla.ops.packing import sequence_bounds
from varla.ops.settings import VLASettings
from varla.ops.triton.ahead import compile_ahead
from varla.ops.triton.configuration import Inputs, Kept, Precision, Shape, State
from varla.ops.triton.pipeline import Pipeline
from varla.ops.triton.plan import CHUNK, on_device, parts, plan_for, span_length, spans_needed


def _pipeline(inputs: Sequence[Tensor], cu_seqlens: Tensor | None, text: str, backward: bool) -> Pipeline:
    B, T, H, D = inputs[0].shape
    lengths = (T,) * B if cu_seqlens is None else tuple(sequence_bounds(cu_seqlens, T)[1])
    settings, _ = decode(text)
    assert isinstance(settings, VLASettings)
    s = settings  # whose numbers may be integers: those would be other kernels
    settings = replace(s, eps=float(s.eps), penalty_scale=float(s.penalty_scale), refresh=float(s.refresh))
    precision = Precision.of(inputs[0].dtype, D, triton_interpreted())
    capability = torch.cuda.get_device_capability(inputs[0].device)[0] if inputs[0].is_cuda else 9
    shape = Shape.of(H, D, inputs[2].shape[-1], precision.buffer, capability)
    pipeline = Pipeline(plan_for(lengths, H, inputs[0].device), shape, precision, settings)
    if inputs[0].is_cuda:
        compile_ahead(pipeline, inputs[0].dtype, inputs[0].device, backward)
    return pipeline


def _flat(inputs: Sequence[Tensor]) -> Inputs:
    """[B, T, H, d] as [tokens, H, d]."""
    return Inputs(*(x.flatten(0, 1).contiguous() for x in inputs))


def _kept(inputs: Sequence[Tensor], sequences: int, packed: bool) -> Kept:
    """Empty buffers for what the forward keeps, their sizes from shapes alone."""
    q = inputs[0]
    B, T, H, D = q.shape
    buffer = Precision.of(q.dtype, D, triton_interpreted()).buffer
    chunks = T // CHUNK + sequences if packed else B * parts(T, CHUNK)
    spans = spans_needed(sequences, B * T, span_length(B * T, H), packed)
    return Kept.empty(q.flatten(0, 1), inputs[2].shape[-1], chunks, spans, buffer)


def _vla_triton(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    keep: bool,
) -> list[Tensor]:
    """[outputs, *final state, *what the backward needs]; the last part is left out unless `keep`."""
    kept = _kept(inputs, t.shape[0], cu_seqlens is not None)
    extra = list(kept) if keep else []
    if inputs[0].numel() == 0:
        return [torch.empty_like(inputs[2]), *(x.clone() for x in state), *extra]
    with on_device(inputs[0]):
        x = _flat(inputs)
        S, A, z = (y.contiguous() for y in state)
        o, *final = _pipeline(inputs, cu_seqlens, settings, keep).forward(x, State(S, A, z, t), kept)
    return [o.view(inputs[2].shape), *final, *extra]


def _vla_triton_fake(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    keep: bool,
) -> list[Tensor]:
    extra = list(_kept(inputs, t.shape[0], cu_seqlens is not None)) if keep else []
    o = torch.empty_like(inputs[2], memory_format=torch.contiguous_format)
    return [o, *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state), *extra]


def _vla_triton_backward(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    kept: Sequence[Tensor],
    A: Tensor,
    do: Tensor,
    dfinal: Sequence[Tensor],
) -> list[Tensor]:
    """[*gradients of the inputs, *gradients of the initial state]. `A` is the final one."""
    if inputs[0].numel() == 0:
        return [*(torch.zeros_like(x) for x in inputs), *(x.clone() for x in dfinal)]
    with on_device(inputs[0]):
        S, A0, z = (y.contiguous() for y in state)
        dinputs, dstate = _pipeline(inputs, cu_seqlens, settings, True).backward(
            _flat(inputs),
            State(S, A0, z, t),
            Kept(*kept),
            A,
            do.flatten(0, 1).contiguous(),
            *(x.contiguous() for x in dfinal),
        )
    return [*(g.view(x.shape) for g, x in zip(dinputs, inputs, strict=True)), *dstate]


def _vla_triton_backward_fake(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    kept: Sequence[Tensor],
    A: Tensor,
    do: Tensor,
    dfinal: Sequence[Tensor],
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*inputs, *dfinal)]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    tensors, state, t, cu_seqlens, settings, _ = inputs
    ctx.settings = settings
    ctx.set_materialize_grads(False)  # else zeros for everything kept
    _, _, A, _, *kept = output
    ctx.save_for_backward(*tensors, *state, t, cu_seqlens, A, *kept)


def _backward(ctx, grads):  # type: ignore[no-untyped-def]
    q, k, v, u, S, A0, z, t, cu_seqlens, A, *kept = ctx.saved_tensors
    do, *dfinal = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, (v, S, A0, z), strict=False))
    result = vla_triton_backward([q, k, v, u], [S, A0, z], t, cu_seqlens, ctx.settings, kept, A, do, dfinal)
    return result[:4], result[4:], None, None, None, None


vla_triton = operator("vla_triton", _vla_triton, _vla_triton_fake, _backward, _setup_context)
vla_triton_backward = operator(
    "vla_triton_backward", _vla_triton_backward, _vla_triton_backward_fake, refuse_double_backward("triton")
)
