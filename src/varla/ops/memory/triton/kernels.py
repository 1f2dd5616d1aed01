"""Kernels of `memory`: S <- S (I - k a^T) + v a^T over chunks of CHUNK tokens (docs/math.md, section 4).

    prepare     every chunk   T = I + tril(K a^T, -1);  T^-1, Tk = T^-1 K, Tv = T^-1 V, W = tril(Q a^T) T^-1
    scan        every head    E = Tv - Tk S0^T, S1 = S0 + E^T a, chunk after chunk; rows of S are split over programs
    read        every chunk   o = (B S0^T + W V) / max(q.z, eps), with B = Q - W K

The backward is in kernels_backward.py.

The textbook form reads tril(Q a^T) E, and its backward computes T^-T (tril(Q a^T)^T dN + a dS^T). Positive features
make keys nearly parallel. T^-1 is then close to a difference operator, and tril(Q a^T) several times larger than W.
With bfloat16 operands the form above is therefore three times as accurate. Its W is computed from float32 factors.

Without ERROR, the kernels compute linear attention, which writes v instead of the error: S <- S + v a^T. Then T = I,
W = tril(Q a^T), E = V, B = Q and Ta = a. K appears only in the denominators.

BETA: a is multiplied by the write strengths wherever it is written along. DECAY: S decays before the prediction. With c
the running sum of log decays in the chunk (docs/math.md, section 9), products of tokens t and s <= t are multiplied by
exp(c_t - c_s); q and k that meet S0 by `since`, exp(c_t); and a that meets the S or dS after the chunk by `weight`, the
write strength times exp(c_n - c_t). z decays alike. The gradient of a decay is the sum of the terms that pass its token
(chunk_decay.py).

Buffers between kernels are [tokens, H, *], or [chunks, H, *] for what a chunk has only one of. S is stored values by
keys.
"""

import triton
import triton.language as tl

from varla.ops.triton.algebra import between, decays, dot, features, last_of, lower_inverse, normalized, operand
from varla.ops.triton.tiles import column, matrix, rows, store_column, store_matrix, store_rows

CHUNK = tl.constexpr(64)


@triton.jit
def place(chunks, H):
    """(chunk, head, first token, number of tokens) of a program; chunks [*, 2]."""
    chunk, head = tl.program_id(0) // H, tl.program_id(0) % H
    return chunk, head, tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)


@triton.jit
def inverse_of(denominator, eps):
    """1 / max(denominator, eps). NaN stays NaN."""
    return 1 / tl.where(denominator < eps, eps, denominator)


@triton.jit
def times_column(x, ptr, token, count, head, H, ON: tl.constexpr):
    """Rows x [CHUNK, *] times their numbers in ptr [tokens, H], if ON. Key features times `norm` are unit keys."""
    if ON:
        return x * column(ptr, token, count, head, H, CHUNK)[:, None]
    else:
        return x


@triton.jit
def strengths(beta, token, count, head, H, BETA: tl.constexpr):
    """The write strengths of a chunk [CHUNK]; 1 without BETA."""
    if BETA:
        return column(beta, token, count, head, H, CHUNK).to(tl.float32)
    else:
        return tl.full([CHUNK], 1.0, tl.float32)


@triton.jit
def prepare(
    q, k, v, a, beta, decay, norm, since, weight, tinv, W, tk, tv, zsum, chunks, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr,
    DOT: tl.constexpr, SOLVE: tl.constexpr, ERROR: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """T^-1, W, Tk, Tv, the norms of the chunk's key features, and the sum of the features. Without ERROR: W, sum.

    With gates also `since` and `weight` [tokens, H], as above.
    """
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    F = features(k, token, count, head, H, d, D, CHUNK, MAP)
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        end = tl.exp((last_of(high, CHUNK) - high) + (last_of(low, CHUNK) - low))
        store_column(since, tl.exp(high + low), token, count, head, H, CHUNK)
        tl.store(zsum + at.to(tl.int64) * D + d, tl.sum(F * end[:, None], 0), d < D)
    else:
        end = tl.full([CHUNK], 1.0, tl.float32)
        tl.store(zsum + at.to(tl.int64) * D + d, tl.sum(F, 0), d < D)
    given = strengths(beta, token, count, head, H, BETA)
    if BETA or DECAY:
        store_column(weight, end * given, token, count, head, H, CHUNK)
    K, inverse = normalized(F, UNIT)
    if UNIT:
        store_column(norm, tl.reshape(inverse, [CHUNK]), token, count, head, H, CHUNK)
    K = operand(K, DOT)
    written = tl.trans(operand(rows(a, token, count, head, H, d, D, CHUNK), DOT))
    if ERROR:
        N = tl.where(i[:, None] > i[None, :], dot(K, written, DOT), 0.0)
        if DECAY:
            N *= between(high, low, CHUNK)
        N *= given[None, :]
        T = lower_inverse(N, 4, SOLVE)
        store_matrix(tinv, T, at, i, CHUNK, i, CHUNK)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
    C = tl.where(i[:, None] >= i[None, :], dot(Q, written, DOT), 0.0)
    if DECAY:
        C *= between(high, low, CHUNK)
    C *= given[None, :]
    if ERROR:
        store_matrix(W, dot(C, T, SOLVE), at, i, CHUNK, i, CHUNK)
        if DECAY:
            store_rows(tk, dot(T * tl.exp(high + low)[None, :], K, DOT), token, count, head, H, d, D, CHUNK)
            T = operand(T, DOT)
        else:
            T = operand(T, DOT)
            store_rows(tk, dot(T, K, DOT), token, count, head, H, d, D, CHUNK)
        for begin in range(0, DV, BV):
            e = begin + tl.arange(0, BV)
            solved = dot(T, rows(v, token, count, head, H, e, DV, CHUNK), DOT)
            store_rows(tv, solved, token, count, head, H, e, DV, CHUNK)
    else:
        store_matrix(W, C, at, i, CHUNK, i, CHUNK)


@triton.jit
def scan(
    tk, tv, a, since, weight, S, z, zsum, S0, final_S, final_z, chunks, first, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr, WEIGHT: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    """S0 [chunks, H, DV, D], and E [tokens, H, DV], stored over tv. zsum [chunks, H, D] becomes z before each chunk.

    Without ERROR, tv holds the values, and does not change.
    """
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (d[:, None] < D) & (e[None, :] < DV)
    cell = e[None, :] * D + d[:, None]
    size = tl.cast(DV * D, tl.int64)
    own = sequence * H + head
    memory = tl.load(S + own * size + cell, inside, 0.0).to(tl.float32)  # [D, DV]: S^T
    summed = tl.load(z + own * D + d, d < D, 0.0)  # float64
    for chunk in range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
        at = chunk * H + head
        tl.store(S0 + at * size + cell, memory.to(S0.dtype.element_ty), inside)
        E = rows(tv, token, count, head, H, e, DV, CHUNK)
        if ERROR:
            E -= dot(rows(tk, token, count, head, H, d, D, CHUNK), memory, DOT)
            store_rows(tv, E, token, count, head, H, e, DV, CHUNK)
        E = times_column(E, weight, token, count, head, H, WEIGHT)
        if DECAY:
            whole = tl.load(since + (token + count - 1).to(tl.int64) * H + head)
            memory *= whole
        memory = dot(tl.trans(rows(a, token, count, head, H, d, D, CHUNK)), E, DOT, memory)
        if tl.program_id(1) == 0:
            here = tl.load(zsum + at.to(tl.int64) * D + d, d < D, 0.0)
            tl.store(zsum + at.to(tl.int64) * D + d, summed.to(tl.float32), d < D)
            if DECAY:
                summed *= whole
            summed += here
    tl.store(final_S + own * size + cell, memory, inside)
    if tl.program_id(1) == 0:
        tl.store(final_z + own * D + d, summed, d < D)


@triton.jit
def read(
    q, k, v, decay, norm, since, W, S0, z0, o, denominator, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    DOT: tl.constexpr, ERROR: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """Outputs o [tokens, H, DV] and the denominators q.z [tokens, H]."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    i = tl.arange(0, CHUNK)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
    F = features(k, token, count, head, H, d, D, CHUNK, MAP)
    if NORMALIZE:
        within = tl.where(i[:, None] >= i[None, :], dot(Q, tl.trans(F), DOT), 0.0)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        old = tl.sum(Q * before[None, :], 1)
        if DECAY:
            high, low = decays(decay, token, count, head, H, CHUNK)
            within *= between(high, low, CHUNK)
            old *= tl.exp(high + low)
        total = tl.sum(within, 1) + old
    mixed = matrix(W, at, i, CHUNK, i, CHUNK)
    B = times_column(Q, since, token, count, head, H, DECAY)
    if ERROR:
        K = times_column(F, norm, token, count, head, H, UNIT)
        if DECAY:
            B = B - dot(mixed * column(since, token, count, head, H, CHUNK)[None, :], K, DOT)
        else:
            B = B - dot(operand(mixed, DOT), K, DOT)
    mixed = operand(mixed, DOT)
    y = dot(B, tl.trans(matrix(S0, at, e, DV, d, D)), DOT)
    y = dot(mixed, rows(v, token, count, head, H, e, DV, CHUNK), DOT, y)
    if NORMALIZE:
        y *= inverse_of(total, eps)[:, None]
        if tl.program_id(1) == 0:
            store_column(denominator, total, token, count, head, H, CHUNK)
    store_rows(o, y, token, count, head, H, e, DV, CHUNK)
