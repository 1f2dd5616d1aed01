"""VLA as one PyTorch operator: the kernels of `directions`, then those of `memory`; the backward in reverse.

The backward is fused in two places. The kernel that computes da (`memory.finish`) also applies the gain's backward, in
float32. The walk that computes the keys' gradient through a adds it to their gradient through S. As two operators, both
gradients would be rounded and written once more.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.custom_op import operator, refuse_double_backward
from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton import launch as directions
from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton import launch as memory
from varla.ops.packing import packed_lengths
from varla.ops.triton.launcher import Precision, Shape, capability_of, flat, known_parts, parts_needed
from varla.ops.triton.plan import Plan, make_plan, span_length
from varla.ops.triton.precompile import precompile

Launchers = tuple[directions.DirectionLauncher, memory.MemoryLauncher]


@lru_cache(maxsize=64)
def launchers(
    lengths: tuple[int, ...],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    along: DirectionSettings,
    settings: MemorySettings,
    backward: bool,
) -> Launchers:
    """The launchers of `directions` and `memory` for these lengths and sizes (H, D, DV), with compiled kernels."""
    H, D, DV = sizes
    precision = Precision.of(dtype, D)
    shape = Shape.of(H, D, DV, precision.buffer, capability_of(device))
    plan = make_plan(lengths, span_length(sum(lengths), H), device)
    pair = (
        directions.DirectionLauncher(plan, shape, precision, along),
        memory.MemoryLauncher(plan, shape, precision, settings),
    )
    if device.type == "cuda":
        # The settings that kernels are compiled for. Numbers among the settings are run-time arguments.
        switches = (*pair[0]._switches.values(), along.gain, along.normalize_key,
                    settings.normalizer)  # fmt: skip
        precompile(
            ("vla", shape, precision, switches, dtype, device),
            lambda tokens, plan, started: rehearse(pair, tokens, plan, started, dtype, device, backward),
            H, device, backward,
        )  # fmt: skip
    return pair


def rehearse(
    pair: Launchers, tokens: int, plan: Plan, started: list[Any], dtype: torch.dtype, device: torch.device, back: bool
) -> None:
    """Run a call on `tokens` tokens, and its backward if `back`, but only compile its kernels, into `started`."""
    along, held = (replace(each, plan=plan, dry=started) for each in pair)
    assert isinstance(along, directions.DirectionLauncher)
    assert isinstance(held, memory.MemoryLauncher)
    k, u, A, t, a, kept = along.stand_ins(tokens, dtype, device)
    x, held_kept, S, z = held.stand_ins(tokens, dtype, device)
    final = along.forward(k, u, A, t, a, kept)
    o, S, z = held.forward(x, held_kept, S, z)
    if back:
        g = held.backward(x, held_kept, o, S, z, memory.Gain(along.settings.gain, kept.gain))
        along.backward(k, u, A, t, a, kept, final, g.da, g.dk, A)


def _kept(
    q: Tensor, v: Tensor, chunks: int, spans: int, settings: MemorySettings
) -> tuple[Tensor, memory.Kept, directions.Kept]:
    """Empty buffers for a, and for what the forward of `memory` and of `directions` keeps."""
    buffer, like = Precision.of(q.dtype, q.shape[-1]).buffer, q.flatten(0, 1)
    a = torch.empty_like(like, dtype=buffer, memory_format=torch.contiguous_format)
    return a, memory.Kept.empty(like, v.shape[-1], chunks, buffer, settings), directions.Kept.empty(like, spans)


def _vla_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    S: Tensor,
    A: Tensor,
    z: Tensor,
    t: Tensor,
    cu_seqlens: Tensor | None,
    along: DirectionSettings,
    settings: MemorySettings,
    keep: bool,
) -> list[Tensor]:
    """[o, S, A, z, a, *memory.Kept, *directions.Kept]; without `keep` only [o, S, A, z]."""
    B, T, H = q.shape[:3]
    a, held, kept = _kept(q, v, *known_parts(B, T, H, len(t), cu_seqlens is not None), settings)
    extra = [a, *held, *kept] if keep else []
    if q.numel() == 0:
        return [torch.empty_like(v), S.clone(), A.clone(), z.clone(), *extra]
    lengths = (T,) * B if cu_seqlens is None else packed_lengths(cu_seqlens, T)
    with torch.cuda.device_of(q):
        first, second = launchers(lengths, (*q.shape[2:], v.shape[-1]), q.dtype, q.device, along, settings, keep)
        first.hold()
        keys = flat(k)
        A = first.forward(keys, flat(u), A.contiguous(), t, a, kept)
        o, S, z = second.forward(memory.Tokens(flat(q), keys, flat(v), a), held, S.contiguous(), z.contiguous())
    return [o.view(v.shape), S, A, z, *extra]


def _fake(q, k, v, u, S, A, z, t, cu_seqlens, along, settings, keep):
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (v, S, A, z)]
    if not keep:
        return found
    B, T, H = q.shape[:3]
    a, held, kept = _kept(q, v, *parts_needed(B, T, H, t.shape[0], cu_seqlens is not None), settings)
    return [*found, a, *held, *kept]


def _vla_triton_backward(
    inputs: Sequence[Tensor],
    A: Tensor,
    t: Tensor,
    cu_seqlens: Tensor | None,
    along: DirectionSettings,
    settings: MemorySettings,
    final: Tensor,
    buffers: Sequence[Tensor],
    do: Tensor,
    dfinal: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of q, k, v, u and of the initial S, A, z. `A` is the initial A, `final` the A after the last token."""
    q, k, v, u = inputs
    dS, dA, dz = (x.contiguous() for x in dfinal)
    if q.numel() == 0:
        return [*(torch.zeros_like(x) for x in inputs), *(x.clone() for x in dfinal)]
    a, held, kept = buffers[0], memory.Kept(*buffers[1:8]), directions.Kept(*buffers[8:])
    B, T = q.shape[:2]
    lengths = (T,) * B if cu_seqlens is None else packed_lengths(cu_seqlens, T)
    with torch.cuda.device_of(q):
        first, second = launchers(lengths, (*q.shape[2:], v.shape[-1]), q.dtype, q.device, along, settings, True)
        first.hold()
        x = memory.Tokens(flat(q), flat(k), flat(v), a)
        g = second.backward(x, held, flat(do), dS, dz, memory.Gain(along.gain, kept.gain))
        du, dA = first.backward(x.k, flat(u), A.contiguous(), t, a, kept, final, g.da, g.dk, dA)
    dinputs = zip((g.dq, g.dk.to(k.dtype), g.dv, du), inputs, strict=True)
    return [*(grad.view(like.shape) for grad, like in dinputs), g.dS, dA, g.dz]


def _backward_fake(inputs, *others):
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*inputs, *others[-1])]


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    *tensors, t, cu_seqlens, along, settings, _ = inputs
    ctx.settings = along, settings
    ctx.set_materialize_grads(False)  # else PyTorch allocates zero gradients for everything kept
    _, _, A, _, *buffers = output
    ctx.save_for_backward(*tensors, t, cu_seqlens, A, *buffers)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    q, k, v, u, S, A, z, t, cu_seqlens, final, *buffers = ctx.saved_tensors
    do, *dfinal = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, (v, S, A, z), strict=False))
    found = vla_triton_backward([q, k, v, u], A, t, cu_seqlens, *ctx.settings, final, buffers, do, dfinal)
    return *found, None, None, None, None, None


vla_triton_backward = operator(
    "vla_triton_backward", _vla_triton_backward, _backward_fake, refuse_double_backward("triton")
)
vla_triton = operator("vla_triton", _vla_triton, _fake, _backward, _setup_context)
