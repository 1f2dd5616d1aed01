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
W = tril(Q a^T), E = V, B = Q and Ta = a. `turn` is not needed, and K appears only in the denominators.

Buffers between kernels are [tokens, H, *], or [chunks, H, *] for what a chunk has only one of. S is stored values by
keys.
"""

import triton
import triton.language as tl

from varla.ops.triton.tiles import (
    column,
    dot,
    feature_backward,
    features,
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
def keys(F, norm, token, count, head, H, UNIT: tl.constexpr):
    """Keys from their features F: F times `norm` [tokens, H], which is 1 / |F|, if UNIT; else F."""
    if UNIT:
        return F * column(norm, token, count, head, H, CHUNK)[:, None]
    else:
        return F


@triton.jit
def prepare(
    q, k, v, a, norm, tinv, W, tk, tv, zsum, chunks, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr,
    DOT: tl.constexpr, SOLVE: tl.constexpr, ERROR: tl.constexpr,
):  # fmt: skip
    """T^-1, W, Tk, Tv, the norms of the chunk's key features, and the sum of the features. Without ERROR: W, sum."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    F = features(k, token, count, head, H, d, D, CHUNK, ELU)
    tl.store(zsum + at.to(tl.int64) * D + d, tl.sum(F, 0), d < D)
    K, inverse = normalized(F, UNIT)
    if UNIT:
        store_column(norm, tl.reshape(inverse, [CHUNK]), token, count, head, H, CHUNK)
    K = operand(K, DOT)
    written = tl.trans(operand(rows(a, token, count, head, H, d, D, CHUNK), DOT))
    if ERROR:
        N = tl.where(i[:, None] > i[None, :], dot(K, written, DOT), 0.0)
        T = lower_inverse(N, 4, SOLVE)
        store_matrix(tinv, T, at, i, CHUNK, i, CHUNK)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    C = tl.where(i[:, None] >= i[None, :], dot(Q, written, DOT), 0.0)
    if ERROR:
        store_matrix(W, dot(C, T, SOLVE), at, i, CHUNK, i, CHUNK)
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
    tk, tv, a, S, z, zsum, S0, final_S, final_z, chunks, first, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr,
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
        memory = dot(tl.trans(rows(a, token, count, head, H, d, D, CHUNK)), E, DOT, memory)
        if tl.program_id(1) == 0:
            here = tl.load(zsum + at.to(tl.int64) * D + d, d < D, 0.0)
            tl.store(zsum + at.to(tl.int64) * D + d, summed.to(tl.float32), d < D)
            summed += here
    tl.store(final_S + own * size + cell, memory, inside)
    if tl.program_id(1) == 0:
        tl.store(final_z + own * D + d, summed, d < D)


@triton.jit
def read(
    q, k, v, norm, W, S0, z0, o, denominator, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    DOT: tl.constexpr, ERROR: tl.constexpr,
):  # fmt: skip
    """Outputs o [tokens, H, DV] and the denominators q.z [tokens, H]."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    i = tl.arange(0, CHUNK)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    F = features(k, token, count, head, H, d, D, CHUNK, ELU)
    if NORMALIZE:
        within = tl.where(i[:, None] >= i[None, :], dot(Q, tl.trans(F), DOT), 0.0)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        total = tl.sum(within, 1) + tl.sum(Q * before[None, :], 1)
    mixed = operand(matrix(W, at, i, CHUNK, i, CHUNK), DOT)
    if ERROR:
        B = Q - dot(mixed, keys(F, norm, token, count, head, H, UNIT), DOT)
    else:
        B = Q
    y = dot(B, tl.trans(matrix(S0, at, e, DV, d, D)), DOT)
    y = dot(mixed, rows(v, token, count, head, H, e, DV, CHUNK), DOT, y)
    if NORMALIZE:
        y *= inverse_of(total, eps)[:, None]
        if tl.program_id(1) == 0:
            store_column(denominator, total, token, count, head, H, CHUNK)
    store_rows(o, y, token, count, head, H, e, DV, CHUNK)


@triton.jit
def unread(
    q, k, a, E, S0, z0, do, denominator, dD, dzsum, dq, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """dq, the gradient of the denominators dD [tokens, H], and the sum of dD q over each chunk, dzsum [chunks, H, D].

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
    dQ = dot(tl.where(past, X, 0.0), rows(a, token, count, head, H, d, D, CHUNK), DOT, dQ)
    Q = features(q, token, count, head, H, d, D, CHUNK, ELU)
    if NORMALIZE:
        along = tl.sum(Q * dQ, 1)
        F = features(k, token, count, head, H, d, D, CHUNK, ELU)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        z = dot(tl.where(past, 1.0, 0.0), F, DOT) + before[None, :]
        slope = tl.where((under < eps) | (i >= count), 0.0, -inverse) * along
        dQ += slope[:, None] * z
        store_column(dD, slope, token, count, head, H, CHUNK)
        tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * slope[:, None], 0), d < D)
    store_rows(dq, feature_backward(dQ, Q, ELU), token, count, head, H, d, D, CHUNK)


@triton.jit
def turn(
    q, k, a, norm, tinv, W, ta, B, K, chunks, H, D,
    BD: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """ta = T^-T a, B = Q - W K and K, all [tokens, H, D], for `scan_backward`."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    T = tl.trans(matrix(tinv, at, i, CHUNK, i, CHUNK))
    written = rows(a, token, count, head, H, d, D, CHUNK)
    store_rows(ta, dot(T, written, DOT), token, count, head, H, d, D, CHUNK)
    key = features(k, token, count, head, H, d, D, CHUNK, ELU)
    key = operand(keys(key, norm, token, count, head, H, UNIT), DOT)
    store_rows(K, key, token, count, head, H, d, D, CHUNK)
    query = features(q, token, count, head, H, d, D, CHUNK, ELU)
    query -= dot(matrix(W, at, i, CHUNK, i, CHUNK), key, DOT)
    store_rows(B, query, token, count, head, H, d, D, CHUNK)


@triton.jit
def scan_backward(
    ta, B, K, W, do, denominator, dS_final, dS, dv, dS_initial, chunks, first,
    H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr,
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
        memory = dot(tl.trans(rows(B, token, count, head, H, d, D, CHUNK)), g, DOT, memory)
        if ERROR:
            memory = dot(tl.trans(rows(K, token, count, head, H, d, D, CHUNK)), -x, DOT, memory)
    tl.store(dS_initial + own * size + cell, memory, inside)


@triton.jit
def finish(
    q, k, a, norm, gain, E, S0, do, denominator, dD, dv, dS, dz, dk, dP, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    GAIN: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr, BY_CHUNK: tl.constexpr,
):  # fmt: skip
    """dP [chunks, H, CHUNK, D], or [tokens, H, D] without BY_CHUNK, and dk without the gradient through a.

    dP is da with the gain's backward applied; for GAIN "raw" it is da. dP and dS may share memory: a program reads its
    own part before it writes.
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
    Y = operand(tl.where(i[:, None] > i[None, :], Y, 0.0), DOT)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    da = dot(tl.trans(operand(tl.where(past, X, 0.0), DOT)), Q, DOT, da)
    K = keys(features(k, token, count, head, H, d, D, CHUNK, ELU), norm, token, count, head, H, UNIT)
    if ERROR:
        da = dot(tl.trans(Y), K, DOT, da)
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
        dK = dot(Y, operand(written, DOT), DOT, dK)
    if GAIN == "projection":
        dK -= along[:, None] * written
    F = features(k, token, count, head, H, d, D, CHUNK, ELU)
    if UNIT:
        length = column(norm, token, count, head, H, CHUNK)
        dK = dK * length[:, None] - F * (tl.sum(F * dK, 1) * length * length * length)[:, None]
    dK += tl.load(dz + at.to(tl.int64) * D + d, d < D, 0.0)[None, :]
    if NORMALIZE:
        slope = column(dD, token, count, head, H, CHUNK)
        Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
        dK = dot(tl.trans(operand(tl.where(past, slope[:, None], 0.0), DOT)), Q, DOT, dK)
    store_rows(dk, feature_backward(dK, F, ELU), token, count, head, H, d, D, CHUNK)
