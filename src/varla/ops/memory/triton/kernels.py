"""Kernels of `memory`: S <- S (I - k a^T) + v a^T over chunks of CHUNK tokens (docs/math.md, section 4).

    prepare     every chunk   T = I + tril(K a^T, -1);  T^-1, Tk = T^-1 K, Tv = T^-1 V, W = tril(Q a^T) T^-1
    scan        every head    E = Tv - Tk S0^T, S1 = S0 + E^T a, chunk after chunk; rows of S are split over programs
    read        every chunk   o = (B S0^T + W V) / max(q.z, eps), with B = Q - W K

The backward, with dN = do / max(q.z, eps):

    turn        every chunk   Ta = T^-T a, B, K
    scan_backward  every head X = Ta dS^T, dV = R = W^T dN + X, dS0 = dS + dN^T B - X^T K, from the last chunk on
    unread      every chunk   dQ = dN S0 + tril(dN E^T) a, the gradients of the denominators and of z through them
    finish      every chunk   dK and da; from da the gradient dP of A k

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

from varla.ops.triton.tiles import (
    between,
    column,
    decays,
    dot,
    feature_backward,
    features,
    last_of,
    lower_inverse,
    matrix,
    normalized,
    operand,
    rows,
    store_column,
    store_matrix,
    store_rows,
    unit_backward,
)

CHUNK = tl.constexpr(64)
CLOSED = tl.constexpr(-87.3365447505531)  # the logarithm of the smallest float32: below, a decay has no gradient


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
def gated(x, beta, decay, token, count, head, H, BETA: tl.constexpr, DECAY: tl.constexpr):
    """Products x [t, s] of tokens t and s <= t, times the decay between them and the write strength of s."""
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        x *= between(high, low, CHUNK)
    if BETA:
        x *= strengths(beta, token, count, head, H, BETA)[None, :]
    return x


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
    if BETA or DECAY:
        store_column(weight, end * strengths(beta, token, count, head, H, BETA), token, count, head, H, CHUNK)
    K, inverse = normalized(F, UNIT)
    if UNIT:
        store_column(norm, tl.reshape(inverse, [CHUNK]), token, count, head, H, CHUNK)
    K = operand(K, DOT)
    written = tl.trans(operand(rows(a, token, count, head, H, d, D, CHUNK), DOT))
    if ERROR:
        N = tl.where(i[:, None] > i[None, :], dot(K, written, DOT), 0.0)
        N = gated(N, beta, decay, token, count, head, H, BETA, DECAY)
        T = lower_inverse(N, 4, SOLVE)
        store_matrix(tinv, T, at, i, CHUNK, i, CHUNK)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
    C = tl.where(i[:, None] >= i[None, :], dot(Q, written, DOT), 0.0)
    C = gated(C, beta, decay, token, count, head, H, BETA, DECAY)
    if ERROR:
        store_matrix(W, dot(C, T, SOLVE), at, i, CHUNK, i, CHUNK)
        if DECAY:
            high, low = decays(decay, token, count, head, H, CHUNK)
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


@triton.jit
def unread(
    q, k, a, beta, decay, E, S0, z0, do, denominator, dD, reads, dzsum, dq, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr,
    BETA: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """dq, the gradient of the denominators dD [tokens, H], and the sum of dD q over each chunk, dzsum [chunks, H, D].

    With DECAY, reads [tokens, H] gets the part of q . dq that comes from S and z before the chunk.

    dD needs dN . N. We compute it as q . dQ, which is equal because N = S q and dQ = S^T dN. Then dQ + dD z is
    orthogonal to q to the last bit, and the outputs, which were rounded to the inputs' dtype, are not needed.
    """
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    past = i[:, None] >= i[None, :]
    dQ = tl.zeros([CHUNK, BD], tl.float32)
    X = tl.zeros([CHUNK, CHUNK], tl.float32)
    if NORMALIZE:
        under = column(denominator, token, count, head, H, CHUNK)
        inverse = inverse_of(under, eps)
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse[:, None]
        g = operand(g, DOT)
        X = dot(g, tl.trans(rows(E, token, count, head, H, e, DV, CHUNK)), DOT, X)
        dQ = dot(g, matrix(S0, at, e, DV, d, D), DOT, dQ)
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        start = tl.exp(high + low)
        dQ *= start[:, None]
        old = tl.sum(dQ * features(q, token, count, head, H, d, D, CHUNK, MAP), 1)
    X = gated(tl.where(past, X, 0.0), beta, decay, token, count, head, H, BETA, DECAY)
    dQ = dot(X, rows(a, token, count, head, H, d, D, CHUNK), DOT, dQ)
    Q = features(q, token, count, head, H, d, D, CHUNK, MAP)
    if NORMALIZE:
        along = tl.sum(Q * dQ, 1)
        F = features(k, token, count, head, H, d, D, CHUNK, MAP)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        if DECAY:
            z = dot(between(high, low, CHUNK), F, DOT) + start[:, None] * before[None, :]
            old_z = tl.sum(Q * before[None, :], 1) * start
        else:
            z = dot(tl.where(past, 1.0, 0.0), F, DOT) + before[None, :]
        slope = tl.where((under < eps) | (i >= count), 0.0, -inverse) * along
        dQ += slope[:, None] * z
        store_column(dD, slope, token, count, head, H, CHUNK)
        if DECAY:
            old += slope * old_z
            tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * (slope * start)[:, None], 0), d < D)
        else:
            tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * slope[:, None], 0), d < D)
    if DECAY:
        store_column(reads, old, token, count, head, H, CHUNK)
    store_rows(dq, feature_backward(dQ, Q, MAP), token, count, head, H, d, D, CHUNK)


@triton.jit
def turn(
    q, k, a, norm, since, weight, tinv, W, ta, B, K, chunks, H, D,
    BD: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr,
    WEIGHT: tl.constexpr, DECAY: tl.constexpr,
):  # fmt: skip
    """ta = T^-T a, B = Q - W K and K, all [tokens, H, D], for `scan_backward`. Without ERROR: a and Q, with gates."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    written = rows(a, token, count, head, H, d, D, CHUNK)
    written = times_column(written, weight, token, count, head, H, WEIGHT)
    query = features(q, token, count, head, H, d, D, CHUNK, MAP)
    query = times_column(query, since, token, count, head, H, DECAY)
    if ERROR:
        T = tl.trans(matrix(tinv, at, i, CHUNK, i, CHUNK))
        written = dot(T, written, DOT)
        key = times_column(features(k, token, count, head, H, d, D, CHUNK, MAP), norm, token, count, head, H, UNIT)
        key = operand(times_column(key, since, token, count, head, H, DECAY), DOT)
        store_rows(K, key, token, count, head, H, d, D, CHUNK)
        query -= dot(matrix(W, at, i, CHUNK, i, CHUNK), key, DOT)
    store_rows(ta, written, token, count, head, H, d, D, CHUNK)
    store_rows(B, query, token, count, head, H, d, D, CHUNK)


@triton.jit
def scan_backward(
    ta, B, K, W, since, do, denominator, dS_final, dS, dv, dS_initial, chunks, first,
    H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    """dS after every chunk [chunks, H, DV, D], and dv."""
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    i = tl.arange(0, CHUNK)
    inside = (d[:, None] < D) & (e[None, :] < DV)
    cell = e[None, :] * D + d[:, None]
    size = tl.cast(DV * D, tl.int64)
    own = sequence * H + head
    memory = tl.load(dS_final + own * size + cell, inside, 0.0).to(tl.float32)
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    for n in range(0, end - begin):
        chunk = end - 1 - n
        token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
        at = chunk * H + head
        tl.store(dS + at * size + cell, memory.to(dS.dtype.element_ty), inside)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse_of(column(denominator, token, count, head, H, CHUNK), eps)[:, None]
        g = operand(g, DOT)
        x = dot(rows(ta, token, count, head, H, d, D, CHUNK), memory, DOT)
        R = dot(tl.trans(matrix(W, at, i, CHUNK, i, CHUNK)), g, DOT, x)
        store_rows(dv, R, token, count, head, H, e, DV, CHUNK)
        if DECAY:
            memory *= tl.load(since + (token + count - 1).to(tl.int64) * H + head)
        memory = dot(tl.trans(rows(B, token, count, head, H, d, D, CHUNK)), g, DOT, memory)
        if ERROR:
            memory = dot(tl.trans(rows(K, token, count, head, H, d, D, CHUNK)), -x, DOT, memory)
    tl.store(dS_initial + own * size + cell, memory, inside)


@triton.jit
def passing(pairs, reads, writes, whole, DOT: tl.constexpr):
    """The gradient of log decays [CHUNK]: the sum of the terms that pass each token (chunk_decay.Decay.passing)."""
    SPLIT: tl.constexpr = "left" if DOT == "bf16" else DOT
    i = tl.arange(0, CHUNK)
    before = dot(pairs, tl.where(i[:, None] < i[None, :], 1.0, 0.0), SPLIT)  # [i, t]: the sum over j < t
    total = tl.sum(tl.where(i[:, None] >= i[None, :], before + reads[:, None], writes[:, None]), 0)
    return total + whole


@triton.jit
def decayed_sum(x, initial, total, since, chunks, first, H, D, BD: tl.constexpr):
    """Replace x [chunks, H, D] by the gradient of z after each chunk, from the last chunk to the first.

    x is the gradient of z before each chunk through the chunk's own reads. `initial` and `total` [sequences, H, D]: the
    gradients of z after and before each sequence. `tiles.running_sum` does it without decays.
    """
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    own = (sequence * H + head).to(tl.int64) * D + d
    running = tl.load(initial + own, d < D, 0.0)
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    for n in range(0, end - begin):
        chunk = end - 1 - n
        token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
        where = x + (chunk * H + head).to(tl.int64) * D + d
        here = tl.load(where, d < D, 0.0)
        tl.store(where, running.to(tl.float32), d < D)
        running = running * tl.load(since + (token + count - 1).to(tl.int64) * H + head) + here
    tl.store(total + own, running, d < D)


@triton.jit
def finish(
    q, k, a, beta, decay, norm, gain, E, S0, z0, do, denominator, dD, reads, dv, dS, dz, dk, dP, dbeta, ddecay, chunks,
    H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    GAIN: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr, BY_CHUNK: tl.constexpr, BETA: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    """dP [chunks, H, CHUNK, D], or [tokens, H, D] without BY_CHUNK, and dk without the gradient through a.

    dP is da with the gain's backward applied; for GAIN "raw" it is da. dP and dS may share memory: a program reads its
    own part before it writes. With gates also dbeta and ddecay [tokens, H]; `reads` is from `unread`.
    """
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    past = i[:, None] >= i[None, :]
    if NORMALIZE:
        inverse = inverse_of(column(denominator, token, count, head, H, CHUNK), eps)
    dK = tl.zeros([CHUNK, BD], tl.float32)
    da = tl.zeros([CHUNK, BD], tl.float32)
    X = tl.zeros([CHUNK, CHUNK], tl.float32)
    Y = tl.zeros([CHUNK, CHUNK], tl.float32)
    held = tl.zeros([BV, BV], tl.float32)  # its diagonal sums to S0 . dS after the chunk
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        if ERROR:
            R = operand(-rows(dv, token, count, head, H, e, DV, CHUNK), DOT)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse[:, None]
        residual = operand(rows(E, token, count, head, H, e, DV, CHUNK), DOT)
        X = dot(g, tl.trans(residual), DOT, X)
        if ERROR:
            Y = dot(R, tl.trans(residual), DOT, Y)
            dK = dot(R, matrix(S0, at, e, DV, d, D), DOT, dK)
        da = dot(residual, matrix(dS, at, e, DV, d, D), DOT, da)
        if DECAY:
            held = dot(matrix(S0, at, e, DV, d, D), tl.trans(matrix(dS, at, e, DV, d, D)), DOT, held)
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        start = tl.exp(high + low)
        end = tl.exp((last_of(high, CHUNK) - high) + (last_of(low, CHUNK) - low))
        dK *= start[:, None]
        da *= end[:, None]
        X *= between(high, low, CHUNK)
        Y *= between(high, low, CHUNK)
        r = tl.arange(0, BV)
        whole = last_of(start, CHUNK) * tl.sum(tl.sum(tl.where(r[:, None] == r[None, :], held, 0.0), 1), 0)
        given = strengths(beta, token, count, head, H, BETA)
        writes = tl.sum(da * rows(a, token, count, head, H, d, D, CHUNK), 1) * given
        read = column(reads, token, count, head, H, CHUNK)
    Y = operand(tl.where(i[:, None] > i[None, :], Y, 0.0), DOT)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
    da = dot(tl.trans(operand(tl.where(past, X, 0.0), DOT)), Q, DOT, da)
    K = times_column(features(k, token, count, head, H, d, D, CHUNK, MAP), norm, token, count, head, H, UNIT)
    if ERROR:
        da = dot(tl.trans(Y), K, DOT, da)
    if DECAY:
        written = operand(rows(a, token, count, head, H, d, D, CHUNK), DOT)
        pairs = dot(Q, tl.trans(written), DOT) * X
        if ERROR:
            pairs += dot(K, tl.trans(written), DOT) * Y
            read += tl.sum(dK * K, 1)  # dK is still the gradient through S0
        pairs *= given[None, :]
    if BETA:
        slopes = tl.sum(da * rows(a, token, count, head, H, d, D, CHUNK), 1)
        store_column(dbeta, slopes, token, count, head, H, CHUNK)
        da *= strengths(beta, token, count, head, H, BETA)[:, None]
    if GAIN != "raw":
        written = rows(a, token, count, head, H, d, D, CHUNK)
        by = column(gain, token, count, head, H, CHUNK)
    if GAIN == "unit":
        da = unit_backward(da, written, by[:, None])
    elif GAIN == "projection":
        along = tl.sum(da * written, 1)
        da = (da - along[:, None] * K) * by[:, None]
    tl.debug_barrier()
    if BY_CHUNK:
        store_rows(dP, da, at * CHUNK, count, 0, 1, d, D, CHUNK)
    else:
        store_rows(dP, da, token, count, head, H, d, D, CHUNK)
    # The tiles are loaded again: keeping them beside da would spill registers.
    written = rows(a, token, count, head, H, d, D, CHUNK)
    if ERROR:
        Y = gated(Y, beta, decay, token, count, head, H, BETA, False)
        dK = dot(Y, operand(written, DOT), DOT, dK)
    F = features(k, token, count, head, H, d, D, CHUNK, MAP)
    if GAIN == "projection":
        dK -= along[:, None] * written
    if UNIT:
        length = column(norm, token, count, head, H, CHUNK)
        dK = dK * length[:, None] - F * (tl.sum(F * dK, 1) * length * length * length)[:, None]
    dF = tl.load(dz + at.to(tl.int64) * D + d, d < D, 0.0)[None, :]
    if DECAY:
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        whole += last_of(start, CHUNK) * tl.sum(before[None, :] * dF)
        dF = end[:, None] * dF
        writes += tl.sum(F * dF, 1)
    if NORMALIZE:
        slope = column(dD, token, count, head, H, CHUNK)
        Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
        share = tl.where(past, slope[:, None], 0.0)
        if DECAY:
            share *= between(high, low, CHUNK)
            pairs += dot(Q, tl.trans(F), DOT) * share
            dK += dot(tl.trans(operand(share, DOT)), Q, DOT, dF)
        else:
            dK += dF
            dK = dot(tl.trans(operand(share, DOT)), Q, DOT, dK)
    else:
        dK += dF
    if DECAY:
        log = column(decay, token, count, head, H, CHUNK).to(tl.float32)
        slopes = tl.where(log < CLOSED, 0.0, passing(pairs, read, writes, whole, DOT))
        store_column(ddecay, slopes, token, count, head, H, CHUNK)
    store_rows(dk, feature_backward(dK, F, MAP), token, count, head, H, d, D, CHUNK)
