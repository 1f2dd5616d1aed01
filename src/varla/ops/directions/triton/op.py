"""The kernels of `directions` as one PyTorch operator with a hand-written backward."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.custom_op import operator, refuse_double_backward
from varla.ops.directions.gain import Gain
from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton.launch import DirectionLauncher, Kept
from varla.ops.features import Features
from varla.ops.packing import packed_lengths
from varla.ops.triton.launcher import Precision, Shape, capability_of, flat, parts_needed
from varla.ops.triton.plan import CHUNK, Plan, make_plan, span_length
from varla.ops.triton.precompile import precompile


@lru_cache(maxsize=64)
def launcher(
    lengths: tuple[int, ...],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    settings: DirectionSettings,
    backward: bool,
) -> DirectionLauncher:
    """The launcher for sequences of these lengths and sizes (H, D), with compiled kernels."""
    H, D = sizes
    precision = Precision.of(dtype, D)
    shape = Shape.of(H, D, D, precision.buffer, capability_of(device))
    found = DirectionLauncher(make_plan(lengths, span_length(sum(lengths), H), device), shape, precision, settings)

    def rehearse(tokens: int, plan: Plan, started: list[Any]) -> None:
        dry = replace(found, plan=plan, dry=started)
        k, u, A, t, a, kept = dry.stand_ins(tokens, dtype, device)
        final = dry.forward(k, u, A, t, a, kept)
        if backward:
            dP = k.new_empty(len(plan.chunks), H, CHUNK, D, dtype=torch.float32)
            dry.backward(k, u, A, t, a, kept, final, dP, torch.empty_like(a), A)

    if device.type == "cuda":
        switches = (*found._switches.values(), settings.gain, settings.normalize_key)
        precompile(("directions", shape, precision, switches, dtype, device), rehearse, H, device, backward)
    return found


def _kept(k: Tensor, sequences: int, packed: bool) -> Kept:
    """Empty buffers for what the forward keeps. Their sizes depend on shapes alone."""
    B, T, H = k.shape[:3]
    return Kept.empty(k.flatten(0, 1), parts_needed(B, T, H, sequences, packed)[1])


def _directions_triton(
    k: Tensor,
    u: Tensor,
    A: Tensor,
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: DirectionSettings,
    keep: bool,
) -> list[Tensor]:
    """[a, A, *Kept]; without `keep` only [a, A]."""
    kept = _kept(k, t.shape[0], cu_seqlens is not None)
    extra = list(kept) if keep else []
    if k.numel() == 0:
        return [torch.empty_like(k), A.clone(), *extra]
    B, T = k.shape[:2]
    lengths = (T,) * B if cu_seqlens is None else packed_lengths(cu_seqlens, T)
    with torch.cuda.device_of(k):
        found = launcher(lengths, k.shape[2:], k.dtype, k.device, settings, keep)
        found.hold()
        a = torch.empty_like(flat(k), dtype=found.precision.buffer)
        A = found.forward(flat(k), flat(u), A.contiguous(), t, a, kept)
    return [a.to(k.dtype).view(k.shape), A, *extra]


def _fake(k, u, A, t, cu_seqlens, settings, keep):
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, A)]
    return [*found, *(_kept(k, t.shape[0], cu_seqlens is not None) if keep else [])]


def _directions_triton_backward(
    k: Tensor,
    u: Tensor,
    A: Tensor,
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: DirectionSettings,
    a: Tensor,
    final: Tensor,
    buffers: Sequence[Tensor],
    da: Tensor,
    dA: Tensor,
) -> list[Tensor]:
    """Gradients of k, u and the initial A. a and `final` are results of the forward."""
    if k.numel() == 0:
        return [torch.zeros_like(k), torch.zeros_like(u), dA.clone()]
    kept = Kept(*buffers)
    B, T = k.shape[:2]
    lengths = (T,) * B if cu_seqlens is None else packed_lengths(cu_seqlens, T)
    with torch.cuda.device_of(k):
        found = launcher(lengths, k.shape[2:], k.dtype, k.device, settings, True)
        found.hold()
        written = flat(a).to(found.precision.buffer)
        keys = Features(flat(k).float(), settings.feature_map, settings.normalize_key)
        dP, dK = Gain.of(settings.gain, written.float(), kept.gain[..., None], keys.y).backward(flat(da).float())
        dk = keys.backward(dK * torch.ones_like(keys.y)).to(written.dtype)
        # Rows beyond the end of a short chunk hold other tokens; no kernel reads them.
        rows = found.plan.chunks[:, :1] + torch.arange(CHUNK, device=k.device)
        dP = dP[rows.clamp(max=len(dP) - 1).long()].transpose(1, 2).contiguous()  # [chunks, H, CHUNK, D]
        du, dA = found.backward(flat(k), flat(u), A.contiguous(), t, written, kept, final, dP, dk, dA.contiguous())
    return [dk.to(k.dtype).view(k.shape), du.view(u.shape), dA]


def _backward_fake(k, u, A, *others):
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, u, A)]


def _setup_context(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    k, u, A, t, cu_seqlens, ctx.settings, _ = inputs
    ctx.set_materialize_grads(False)  # else PyTorch allocates zero gradients for everything kept
    ctx.save_for_backward(k, u, A, t, cu_seqlens, *output)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    k, u, A, t, cu_seqlens, a, final, *buffers = ctx.saved_tensors
    da, dA = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, (k, A), strict=False))
    found = directions_triton_backward(k, u, A, t, cu_seqlens, ctx.settings, a, final, buffers, da, dA)
    return *found, None, None, None, None


directions_triton_backward = operator(
    "directions_triton_backward", _directions_triton_backward, _backward_fake, refuse_double_backward("triton")
)
directions_triton = operator("directions_triton", _directions_triton, _fake, _backward, _setup_context)
