"""The paper's "DeltaNet" token by token, forward and backward: s <- g s + (v - s . k) k, o = s . q for each row s of S.

With a gate for every row nothing but q and k is shared between rows, and the chunk-wise form would be one of Dv heads;
this one costs the same whichever gate there is. A program has BV rows of one head in registers and goes through all
tokens of a sequence. The state is kept every EVERY tokens; the backward goes back from one to the one before, makes the
states between again into memory of its own, and reads them in reverse. (Undoing a token instead would divide by its
gate.) A program's rows give their share of the gradients of q and k; the shares are summed afterwards.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.chunk.op import decode, refuse_double_backward
from varla.ops.features import unit, unit_backward
from varla.ops.operator import operator
from varla.ops.packing import sequence_bounds
from varla.ops.settings import DecayedDeltaRuleSettings
from varla.ops.triton.pieces import matrix, rows, store_matrix, store_rows
from varla.ops.triton.plan import on_device, parts

EVERY = 16  # tokens from one kept state to the next
ROWS = 32  # of S in a program, at the most


@triton.jit
def error(S, k, v, token, head, H, r, DV, d, D):
    """(v - S k [BV, 1], k [1, BD]) of a token."""
    K = rows(k, token, 1, head, H, d, D, 1)
    return rows(v, token, 1, head, H, r, DV, 1, True) - tl.sum(S * K, 1, keep_dims=True), K


@triton.jit
def decayed_forward(
    q, k, v, gate, start, bounds, o, final, kept, H, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, EVERY: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One head of one sequence, BV rows. `bounds`: where sequences begin in q, k [tokens, H, D] and end."""
    index = tl.program_id(0)
    sequence, head = index // H, index % H
    d, r = tl.arange(0, BD), tl.program_id(1) * BV + tl.arange(0, BV)
    begin, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    S = matrix(start, index, r, DV, d, D)
    for i in range(0, end - begin):
        token = begin + i
        if KEEP:
            if i % EVERY == 0:
                store_matrix(kept, S, (begin // EVERY + sequence + i // EVERY) * H + head, r, DV, d, D)
        e, K = error(S, k, v, token, head, H, r, DV, d, D)
        S = rows(gate, token, 1, head, H, r, DV, 1, True) * S + e * K
        Q = rows(q, token, 1, head, H, d, D, 1)
        store_rows(o, tl.sum(S * Q, 1, keep_dims=True), token, 1, head, H, r, DV, 1, True)
    store_matrix(final, S, index, r, DV, d, D)


@triton.jit
def decayed_backward(
    q, k, v, gate, bounds, kept, between, do, dfinal, dq, dk, dv, dgate, dstart, H, tokens, D: tl.constexpr,
    DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, EVERY: tl.constexpr,
):  # fmt: skip
    """The same in reverse. `between` [programs, EVERY, BV, BD] is for the states before each token of a stretch.

    dq and dk are [blocks of rows, tokens, H, D], to be summed; dgate is that of the gate, not of its logarithm.
    """
    index, block = tl.program_id(0), tl.program_id(1)
    sequence, head = index // H, index % H
    a = tl.arange(0, BV)
    d, r = tl.arange(0, BD), block * BV + a
    begin, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    mine = (index * tl.num_programs(1) + block) * EVERY
    share = block * tokens
    dS = matrix(dfinal, index, r, DV, d, D)
    stretches = (end - begin + EVERY - 1) // EVERY
    for back in range(0, stretches):
        stretch = stretches - 1 - back
        first = begin + stretch * EVERY
        count = tl.minimum(end - first, EVERY)
        S = matrix(kept, (begin // EVERY + sequence + stretch) * H + head, r, DV, d, D)
        for i in range(0, count):
            store_matrix(between, S, mine + i, a, BV, d, BD)
            e, K = error(S, k, v, first + i, head, H, r, DV, d, D)
            S = rows(gate, first + i, 1, head, H, r, DV, 1, True) * S + e * K
        tl.debug_barrier()
        for j in range(0, count):
            i = count - 1 - j
            token = first + i
            dO = rows(do, token, 1, head, H, r, DV, 1, True)
            dS += dO * rows(q, token, 1, head, H, d, D, 1)
            store_rows(dq, tl.sum(dO * S, 0, keep_dims=True), share + token, 1, head, H, d, D, 1)
            S = matrix(between, mine + i, a, BV, d, BD)
            e, K = error(S, k, v, token, head, H, r, DV, d, D)
            de = tl.sum(dS * K, 1, keep_dims=True)
            store_rows(dk, tl.sum(e * dS - de * S, 0, keep_dims=True), share + token, 1, head, H, d, D, 1)
            store_rows(dv, de, token, 1, head, H, r, DV, 1, True)
            store_rows(dgate, tl.sum(dS * S, 1, keep_dims=True), token, 1, head, H, r, DV, 1, True)
            dS = rows(gate, token, 1, head, H, r, DV, 1, True) * dS - de * K
        tl.debug_barrier()
    store_matrix(dstart, dS, index, r, DV, d, D)


def _sizes(D: int, DV: int) -> dict[str, int]:
    BD, BV = triton.next_power_of_2(D), min(triton.next_power_of_2(DV), ROWS)
    return {"D": D, "DV": DV, "BD": BD, "BV": BV, "EVERY": EVERY, "num_warps": min(4, max(1, BD * BV // 1024))}


def _flat(x: Tensor) -> Tensor:
    """[B, T, H, d] as [tokens, H, d]."""
    return x.flatten(0, 1).contiguous()


def _bounds(inputs: Sequence[Tensor], cu_seqlens: Tensor | None) -> Tensor:
    """Where sequences begin among all tokens, and where the last one ends."""
    B, T = inputs[0].shape[:2]
    if cu_seqlens is None:
        return torch.arange(B + 1, device=inputs[0].device) * T
    sequence_bounds(cu_seqlens, T)  # else a kernel would read what is not there
    return cu_seqlens.to(inputs[0].device, torch.int64)


def _prepared(inputs: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v and the gate of every row, flat, as the kernels take them; and 1 / |k| if keys were normalised."""
    q, k, v, log_gate = inputs
    settings, _ = decode(text)
    assert isinstance(settings, DecayedDeltaRuleSettings)
    inverse = None
    if settings.normalize_key:
        k, inverse = unit(k.float())
    return _flat(q), _flat(k), _flat(v), _flat(log_gate.float().exp().expand(v.shape)), inverse


def _slots(inputs: Sequence[Tensor], t: Tensor, keep: bool) -> int:
    """States kept: those of a sequence begin at slot (tokens before it) // EVERY + (sequences before it)."""
    B, T = inputs[0].shape[:2]
    return B * T // EVERY + t.shape[0] if keep else 0


def _decayed_triton(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    keep: bool,
) -> list[Tensor]:
    """[outputs, final S, states kept]; the last has no rows unless `keep`."""
    (S,) = state
    kept = S.new_empty(_slots(inputs, t, keep), *S.shape[1:])
    o = torch.empty_like(inputs[2], memory_format=torch.contiguous_format)
    if inputs[0].numel() == 0:
        return [o, S.clone(memory_format=torch.contiguous_format), kept]
    final = torch.empty_like(S, memory_format=torch.contiguous_format)
    sizes = _sizes(S.shape[3], S.shape[2])
    with on_device(S):
        *prepared, _ = _prepared(inputs, settings)
        decayed_forward[S.shape[0] * S.shape[1], parts(S.shape[2], sizes["BV"])](
            *prepared, S.contiguous(), _bounds(inputs, cu_seqlens), o, final, kept, S.shape[1], KEEP=keep, **sizes
        )
    return [o, final, kept]


def _decayed_triton_fake(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    keep: bool,
) -> list[Tensor]:
    (S,) = state
    o, final = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (inputs[2], S))
    return [o, final, S.new_empty(_slots(inputs, t, keep), *S.shape[1:])]


def _decayed_triton_backward(
    inputs: Sequence[Tensor],
    kept: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    do: Tensor,
    dfinal: Tensor,
) -> list[Tensor]:
    """[*gradients of the inputs, gradient of the initial S]."""
    if inputs[0].numel() == 0:
        return [*(torch.zeros_like(x) for x in inputs), dfinal.clone()]
    rows_, H, DV, D = dfinal.shape
    sizes = _sizes(D, DV)
    blocks = parts(DV, sizes["BV"])
    q, k, v, gate, inverse = _prepared(inputs, settings)
    dq, dk = (torch.empty(blocks, *q.shape, device=q.device) for _ in range(2))
    dv, dgate = (torch.empty(v.shape, device=q.device) for _ in range(2))
    between = torch.empty(rows_ * H * blocks, EVERY, sizes["BV"], sizes["BD"], device=q.device)
    dstart = torch.empty_like(dfinal, memory_format=torch.contiguous_format)
    with on_device(q):
        decayed_backward[rows_ * H, blocks](
            q, k, v, gate, _bounds(inputs, cu_seqlens), kept, between, _flat(do), dfinal.contiguous(), dq, dk, dv,
            dgate, dstart, H, q.shape[0], **sizes,
        )  # fmt: skip
    dk_sum = dk.sum(0).view(inputs[1].shape)
    if inverse is not None:
        dk_sum = unit_backward(dk_sum, k.view(inputs[1].shape), inverse)
    dlog = (dgate * gate).view(inputs[2].shape)
    if inputs[3].shape[-1] != DV:
        dlog = dlog.sum(-1, keepdim=True)
    found = (dq.sum(0).view(inputs[0].shape), dk_sum, dv.view(inputs[2].shape), dlog)
    return [*(g.to(x.dtype) for g, x in zip(found, inputs, strict=True)), dstart]


def _decayed_triton_backward_fake(
    inputs: Sequence[Tensor],
    kept: Tensor,
    cu_seqlens: Tensor | None,
    settings: str,
    do: Tensor,
    dfinal: Tensor,
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*inputs, dfinal)]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    tensors, _, _, cu_seqlens, settings, _ = inputs
    ctx.settings = settings
    ctx.save_for_backward(*tensors, output[2], cu_seqlens)


def _backward(ctx, grads):  # type: ignore[no-untyped-def]
    *tensors, kept, cu_seqlens = ctx.saved_tensors
    *dinputs, dS = decayed_triton_backward(tensors, kept, cu_seqlens, ctx.settings, grads[0], grads[1])
    return dinputs, [dS], None, None, None, None


decayed_triton = operator("decayed_triton", _decayed_triton, _decayed_triton_fake, _backward, _setup_context)
decayed_triton_backward = operator(
    "decayed_triton_backward",
    _decayed_triton_backward,
    _decayed_triton_backward_fake,
    refuse_double_backward("triton"),
)
