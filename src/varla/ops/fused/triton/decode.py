"""One token of VLA in one launch, with the state updated in place: the step of text generation.

A token reads and writes all of A and S and computes little, so the kernel is memory-bound. One program has one head of
one row. It goes through the rows of A in blocks, then through those of S. It reads A twice, because A u must be known
before the first element of A is written; the second time A is still in the cache. (If A stayed in registers, a
multiprocessor would have no room for a second program that loads while the first computes.) A head is not divided among
programs: each would need the old A, and the one that writes the new A would have to wait until all have read it.

The call never waits for the GPU, and with contiguous inputs it allocates only the output. It can therefore be captured
in a CUDA graph.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.custom_op import empty, mutating_operator
from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton.inverse import fade
from varla.ops.directions.triton.walk import TINY
from varla.ops.memory.settings import MemorySettings
from varla.ops.triton.algebra import features, normalized, unit
from varla.ops.triton.launcher import capability_of
from varla.ops.triton.tiles import loaded, matrix, rows, store_matrix, store_rows

ARRIVAL = tl.constexpr(40)  # the lower bits of t that hold the token count; the others count programs (`next_token`)


@triton.jit
def part(x, begin, N: tl.constexpr):
    """Entries [begin, begin + N) of x [1, BD] as a column [N, 1]."""
    PARTS: tl.constexpr = x.shape[1] // N
    mine = tl.arange(0, PARTS)[:, None] == begin // N
    return tl.trans(tl.sum(tl.where(mine, tl.reshape(x, [PARTS, N]), 0.0), 0, keep_dims=True))


@triton.jit
def write_direction(p, k, GAIN: tl.constexpr):
    """Line 18 of Algorithm 1: alpha [1, BD] from p = A k and the key k [1, BD]."""
    if GAIN == "unit":
        alpha, _ = unit(p)
        return alpha
    elif GAIN == "projection":
        along = tl.sum(k * p, 1, keep_dims=True)
        return p * tl.where(along == 0, 0.0, 1 / tl.where(along == 0, 1.0, along))
    else:
        return p


@triton.jit
def denominator(z, q, eps, NORMALIZE: tl.constexpr):
    """max(z . q, eps) of z, q [1, BD], or 1. NaN stays NaN."""
    if NORMALIZE:
        along = tl.sum(z * q, 1, keep_dims=True)
        return tl.where(along < eps, eps, along)
    else:
        return 1.0


@triton.jit
def next_token(t, programs):
    """The number of a row's next token, t + 1. The last program of the row to read it also writes it.

    It must not be written before all programs of the row have read it, and they run in any order. So each adds itself
    to a count in the upper bits of t, and sees how many came before. (Relaxed atomics are enough, because only this
    address is involved.)
    """
    arrival = tl.full([], 1, tl.int64) << ARRIVAL
    found = tl.atomic_add(t, arrival, sem="relaxed")
    seen = (found << (64 - ARRIVAL)) >> (64 - ARRIVAL)  # the lower bits, with their sign
    if found - seen == (programs - 1) * arrival:
        tl.atomic_add(t, 1 - programs * arrival, sem="relaxed")
    return seen + 1


@triton.jit
def decode_token(
    q, k, v, u, beta, decay, strength, state_S, state_A, state_z, state_t, o, H, scale, period, eta, eps, query_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BA: tl.constexpr, MAP: tl.constexpr,
    UNIT: tl.constexpr, UNIT_QUERY: tl.constexpr, NORMALIZE: tl.constexpr, UPDATE: tl.constexpr,
    REFRESH: tl.constexpr, GAIN: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, STRENGTH: tl.constexpr,
):  # fmt: skip
    """One token of one head: q, k, u, z [B H, D], v, o [B H, DV], gates [B H], S [B H, DV, D], A [B H, D, D], t [B]."""
    head = tl.program_id(0)
    d, r, a = tl.arange(0, BD), tl.arange(0, BV), tl.arange(0, BA)
    F = features(k, head, 1, 0, 1, d, D, 1, MAP)
    Q = normalized(features(q, head, 1, 0, 1, d, D, 1, MAP), UNIT_QUERY)[0] * query_scale
    K, _ = normalized(F, UNIT)
    z = loaded(state_z, head, 1, 0, 1, d, D, 1)  # float64
    if DECAY:
        kept = tl.exp(tl.load(decay + head).to(tl.float32))
        z *= kept
    z += F
    t = next_token(state_t + head // H, H)

    # Lines 8 to 17. A is symmetric, so A u sums its rows times the entries of u; blocks are summed first, rows last.
    if UPDATE:
        U, _ = unit(rows(u, head, 1, 0, 1, d, D, 1))
        if STRENGTH:
            w = tl.load(strength + head).to(tl.float32)
            U *= tl.sqrt(tl.where(w < TINY, TINY, w))
        else:
            U *= scale
        sums = tl.zeros([BA, BD], tl.float32)
        A = matrix(state_A, head, a, D, d, D)
        for begin in range(0, BD, BA):
            following = matrix(state_A, head, begin + BA + a, D, d, D)
            sums += A * part(U, begin, BA)
            A = following
        w = tl.sum(sums, 0, keep_dims=True)
        inverse = 1 / (1 + tl.sum(U * w, 1, keep_dims=True))
    S = matrix(state_S, head, r, DV, d, D)  # this load overlaps with the loop over A
    sums = tl.zeros([BA, BD], tl.float32)
    for begin in range(0, BD, BA):
        A = matrix(state_A, head, begin + a, D, d, D)
        if UPDATE:
            A -= (part(w, begin, BA) * w) * inverse  # this order keeps A symmetric to the last bit
            if REFRESH:
                A += tl.where(begin + a[:, None] == d[None, :], tl.where(t % period == 0, eta, 0.0), 0.0)
            # Several warps hold copies of a small tile, each with its own load: all must load before one stores.
            tl.debug_barrier()
            store_matrix(state_A, A, head, begin + a, D, d, D)
        sums += A * part(K, begin, BA)
    alpha = write_direction(tl.sum(sums, 0, keep_dims=True), K, GAIN)
    if BETA:
        alpha *= tl.load(beta + head).to(tl.float32)

    # Lines 19 to 24. The next block of S loads during the computation of the current one.
    tl.debug_barrier()
    store_rows(state_z, z, head, 1, 0, 1, d, D, 1)
    divisor = denominator(z.to(tl.float32), Q, eps, NORMALIZE)
    for begin in range(0, DV, BV):
        following = matrix(state_S, head, begin + BV + r, DV, d, D)
        if DECAY:
            S *= kept
        e = rows(v, head, 1, 0, 1, begin + r, DV, 1, True) - tl.sum(S * K, 1, keep_dims=True)
        S += e * alpha
        store_rows(o, tl.sum(S * Q, 1, keep_dims=True) / divisor, head, 1, 0, 1, begin + r, DV, 1, True)
        tl.debug_barrier()
        store_matrix(state_S, S, head, begin + r, DV, d, D)
        S = following


def constants(
    along: DirectionSettings, settings: MemorySettings, D: int, DV: int
) -> tuple[tuple[float, int, float, float], dict[str, Any]]:
    """(scalar arguments in their order, named constants) of a kernel of VLA that goes token by token."""
    period, eta = along.refresh_beat or (1, 0.0)
    BD = max(16, triton.next_power_of_2(D))
    return (along.length_of_u(D), period, eta, settings.eps), {
        "D": D,
        "DV": DV,
        "BD": BD,
        "BV": 32 if DV > 16 else 16,
        "MAP": along.feature_map,
        "UNIT": along.normalize_key,
        "NORMALIZE": settings.normalizer,
        "UPDATE": along.update_penalty,
        "REFRESH": along.refresh_beat is not None,
        "GAIN": along.gain,
        "num_warps": BD // 16,
    }


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    beta: Tensor | None,
    decay: Tensor | None,
    strength: Tensor | None,
    S: Tensor,
    A: Tensor,
    z: Tensor,
    t: Tensor,
    along: DirectionSettings,
    settings: MemorySettings,
) -> Tensor:
    """o [B, H, Dv] from checked q, k, u [B, H, D], v [B, H, Dv] and gates [B, H, 1]; updates S, A, z and t.

    A must be symmetric, as in every state that this package makes.
    """
    o = empty(v)
    (B, H, D), DV = q.shape, v.shape[-1]
    if B == 0:
        return o
    scalars, named = constants(along, settings, D, DV)
    gates = {"BETA": beta, "DECAY": decay, "STRENGTH": strength}
    with torch.cuda.device_of(q):
        decode_token[(B * H,)](
            # q takes the place of a missing gate, and the kernel does not read it.
            *((q if x is None else x).contiguous() for x in (q, k, v, u, *gates.values())),
            S, A, z, t, o, H, *scalars, settings.scale_of(D), **named,
            **{name: x is not None for name, x in gates.items()}, UNIT_QUERY=settings.normalize_query,
            BA=min(32, named["BD"]), maxnreg=128,  # then two programs of eight warps fit on a multiprocessor
        )  # fmt: skip
    return o


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return empty(v)


decode_ = mutating_operator("vla_decode_", _decode, _fake, ("S", "A", "z", "t"))


def _fade(A: Tensor, f: Tensor, t: Tensor, forget: Tensor, along: DirectionSettings) -> None:
    """Forgetting at the beat, before `decode_`: updates A [B, H, D, D] and f [B, H]. forget [B, H, 1], t [B]."""
    B, H, D = A.shape[:3]
    BD = max(16, triton.next_power_of_2(D))
    warps = 8 if BD == 128 else 4
    if B > 0:
        with torch.cuda.device_of(A):
            fade[(B * H,)](
                A, f, t, forget.contiguous(), A.new_empty(B * H, 16, BD + 16), H, D, along.lambda0, along.beat,
                BD=BD, WALK="tf32x3", WARPS=warps, num_warps=warps,
                maxnreg=None if capability_of(A.device) >= 9 else 255,  # as Shape.max_registers
            )  # fmt: skip


fade_ = mutating_operator("vla_fade_", _fade, lambda *_: None, ("A", "f"))
