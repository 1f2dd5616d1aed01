"""Kernels of the S part: S <- S (I - k a^T) + v a^T over chunks of CHUNK tokens (docs/math.md, section 4).

    prepare     every chunk      T = I + tril(K a^T, -1);  T^-1, Tk = T^-1 K, Tv = T^-1 V, and the sum of the features
    scan        every head       E = Tv - Tk S0^T, S1 = S0 + E^T a, chunk after chunk; rows of S apart
    read        every chunk      o = (Q S0^T + tril(Q a^T) E) / max(q.z, eps)

and backward, with dN = do / max(q.z, eps):

    unread      every chunk      tril(Q a^T)^T dN, dQ, and the gradient of the denominators
    scan_backward  every head    dE = that + a dS^T, dS0 = dS + dN^T Q - dE^T Tk, from the last chunk to the first
    finish      every chunk      dV = T^-T dE, dK and da; from da the gradient dP of A k

Buffers between kernels are [tokens, H, *], or [chunks, H, *] for what a chunk has one of. S is kept values by keys.
"""

import triton
import triton.language as tl

from varla.ops.triton.pieces import (
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
def prepare(
    k, v, a, tinv, tk, tv, zsum, chunks, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, SOLVED: tl.constexpr,
    DOT: tl.constexpr, SOLVE: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """T^-1 (SOLVED: read it instead), Tk, Tv and the sum of the chunk's key features."""
    chunk, head, token, count = place(chunks, H)
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    F = features(k, token, count, head, H, d, D, CHUNK, ELU)
    K = normalized(F, UNIT)[0]
    tl.store(zsum + (chunk * H + head).to(tl.int64) * D + d, tl.sum(F, 0), d < D)
    if SOLVED:
        T = matrix(tinv, chunk * H + head, i, CHUNK, i, CHUNK)
    else:
        N = dot(K, tl.trans(rows(a, token, count, head, H, d, D, CHUNK)), DOT)
        T = lower_inverse(tl.where(i[:, None] > i[None, :], N, 0.0), WARPS, SOLVE)
        store_matrix(tinv, T, chunk * H + head, i, CHUNK, i, CHUNK)
    store_rows(tk, dot(T, K, DOT), token, count, head, H, d, D, CHUNK)
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        store_rows(tv, dot(T, rows(v, token, count, head, H, e, DV, CHUNK), DOT), token, count, head, H, e, DV, CHUNK)


@triton.jit
def scan(
    tk, tv, a, S, z, zsum, S0, final_S, final_z, chunks, first, H, D, DV,
    BD: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """S0 [chunks, H, DV, D] and E [tokens, H, DV], in place of tv; zsum [chunks, H, D] becomes the sum before."""
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (d[:, None] < D) & (e[None, :] < DV)
    cell = e[None, :] * D + d[:, None]
    size = (DV * D).to(tl.int64)
    own = sequence * H + head
    memory = tl.load(S + own * size + cell, inside, 0.0).to(tl.float32)  # [D, DV]: S^T
    summed = tl.load(z + own * D + d, d < D, 0.0).to(tl.float32)
    for chunk in range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
        at = chunk * H + head
        tl.store(S0 + at * size + cell, memory.to(S0.dtype.element_ty), inside)
        E = rows(tv, token, count, head, H, e, DV, CHUNK)
        E -= dot(rows(tk, token, count, head, H, d, D, CHUNK), memory, DOT)
        store_rows(tv, E, token, count, head, H, e, DV, CHUNK)
        memory = dot(tl.trans(rows(a, token, count, head, H, d, D, CHUNK)), E, DOT, memory)
        if tl.program_id(1) == 0:
            here = tl.load(zsum + at.to(tl.int64) * D + d, d < D, 0.0)
            tl.store(zsum + at.to(tl.int64) * D + d, summed, d < D)
            summed += here
    tl.store(final_S + own * size + cell, memory, inside)
    if tl.program_id(1) == 0:
        tl.store(final_z + own * D + d, summed, d < D)


@triton.jit
def read(
    q, k, a, E, S0, z0, o, denominator, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Outputs o [tokens, H, DV] and the denominators q.z [tokens, H]."""
    chunk, head, token, count = place(chunks, H)
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    i = tl.arange(0, CHUNK)
    past = i[:, None] >= i[None, :]
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    C = tl.where(past, dot(Q, tl.trans(rows(a, token, count, head, H, d, D, CHUNK)), DOT), 0.0)
    y = dot(Q, tl.trans(matrix(S0, chunk * H + head, e, DV, d, D)), DOT)
    y = dot(C, rows(E, token, count, head, H, e, DV, CHUNK), DOT, y)
    if NORMALIZE:
        F = operand(features(k, token, count, head, H, d, D, CHUNK, ELU), DOT)
        before = tl.load(z0 + (chunk * H + head).to(tl.int64) * D + d, d < D, 0.0)
        total = tl.sum(tl.where(past, dot(Q, tl.trans(F), DOT), 0.0), 1) + tl.sum(Q * before[None, :], 1)
        y *= inverse_of(total, eps)[:, None]
        if tl.program_id(1) == 0:
            store_column(denominator, total, token, count, head, H, CHUNK)
    store_rows(o, y, token, count, head, H, e, DV, CHUNK)


@triton.jit
def unread(
    q, k, a, E, S0, z0, o, do, denominator, dD, dE, dzsum, dq, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """All that needs no dS: dq, the chunk's own part of dE [tokens, H, DV], dD [tokens, H], and the sum of dD q."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    past = i[:, None] >= i[None, :]
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    written = operand(rows(a, token, count, head, H, d, D, CHUNK), DOT)
    C = operand(tl.where(i[:, None] <= i[None, :], dot(written, tl.trans(Q), DOT), 0.0), DOT)  # transposed
    dQ = tl.zeros([CHUNK, BD], tl.float32)
    X = tl.zeros([CHUNK, CHUNK], tl.float32)
    along = tl.zeros([CHUNK], tl.float32)
    if NORMALIZE:
        under = column(denominator, token, count, head, H, CHUNK)
        inverse = inverse_of(under, eps)
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            along += tl.sum(g * rows(o, token, count, head, H, e, DV, CHUNK), 1)
            g *= inverse[:, None]
        g = operand(g, DOT)
        store_rows(dE, dot(C, g, DOT), token, count, head, H, e, DV, CHUNK)
        X = dot(g, tl.trans(rows(E, token, count, head, H, e, DV, CHUNK)), DOT, X)
        dQ = dot(g, matrix(S0, at, e, DV, d, D), DOT, dQ)
    dQ = dot(tl.where(past, X, 0.0), written, DOT, dQ)
    if NORMALIZE:
        slope = tl.where((under < eps) | (i >= count), 0.0, -along * inverse)
        store_column(dD, slope, token, count, head, H, CHUNK)
        tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * slope[:, None], 0), d < D)
        F = operand(features(k, token, count, head, H, d, D, CHUNK, ELU), DOT)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        dQ = dot(tl.where(past, slope[:, None], 0.0), F, DOT, dQ) + slope[:, None] * before[None, :]
    store_rows(dq, feature_backward(dQ, Q.to(tl.float32), ELU), token, count, head, H, d, D, CHUNK)


@triton.jit
def scan_backward(
    q, a, tk, do, denominator, dE, dS_final, dz_final, dzsum, dS, dS_initial, dz_initial, chunks, first, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, NORMALIZE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """dS after every chunk [chunks, H, DV, D]; completes dE; dzsum becomes the gradient of z after each chunk."""
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (d[:, None] < D) & (e[None, :] < DV)
    cell = e[None, :] * D + d[:, None]
    size = (DV * D).to(tl.int64)
    own = sequence * H + head
    memory = tl.load(dS_final + own * size + cell, inside, 0.0).to(tl.float32)
    summed = tl.load(dz_final + own * D + d, d < D, 0.0).to(tl.float32)
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    for n in range(0, end - begin):
        chunk = end - 1 - n
        token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
        at = chunk * H + head
        tl.store(dS + at * size + cell, memory.to(dS.dtype.element_ty), inside)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse_of(column(denominator, token, count, head, H, CHUNK), eps)[:, None]
        Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
        x = rows(dE, token, count, head, H, e, DV, CHUNK)
        x = dot(rows(a, token, count, head, H, d, D, CHUNK), memory, DOT, x)
        store_rows(dE, x, token, count, head, H, e, DV, CHUNK)
        memory = dot(tl.trans(Q), g, DOT, memory)
        memory = dot(tl.trans(rows(tk, token, count, head, H, d, D, CHUNK)), -x, DOT, memory)
        if tl.program_id(1) == 0:
            here = tl.load(dzsum + at.to(tl.int64) * D + d, NORMALIZE & (d < D), 0.0)
            tl.store(dzsum + at.to(tl.int64) * D + d, summed, d < D)
            summed += here
    tl.store(dS_initial + own * size + cell, memory, inside)
    if tl.program_id(1) == 0:
        tl.store(dz_initial + own * D + d, summed, d < D)


@triton.jit
def finish(
    q, k, a, gain, tinv, E, S0, do, denominator, dD, dE, dS, dz, dk, dv, dP, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    GAIN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """dv, dP, and dk but for what reaches it through A. dv may be the same memory as dE."""
    chunk, head, token, count = place(chunks, H)
    at = chunk * H + head
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    past = i[:, None] >= i[None, :]
    T = operand(tl.trans(matrix(tinv, at, i, CHUNK, i, CHUNK)), DOT)
    if NORMALIZE:
        inverse = inverse_of(column(denominator, token, count, head, H, CHUNK), eps)
    dK = tl.zeros([CHUNK, BD], tl.float32)
    da = tl.zeros([CHUNK, BD], tl.float32)
    X = tl.zeros([CHUNK, CHUNK], tl.float32)
    Y = tl.zeros([CHUNK, CHUNK], tl.float32)
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        R = dot(T, rows(dE, token, count, head, H, e, DV, CHUNK), DOT)
        store_rows(dv, R, token, count, head, H, e, DV, CHUNK)
        R = operand(-R, DOT)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse[:, None]
        residual = operand(rows(E, token, count, head, H, e, DV, CHUNK), DOT)
        X = dot(g, tl.trans(residual), DOT, X)
        Y = dot(R, tl.trans(residual), DOT, Y)
        dK = dot(R, matrix(S0, at, e, DV, d, D), DOT, dK)
        da = dot(residual, matrix(dS, at, e, DV, d, D), DOT, da)
    Y = operand(tl.where(i[:, None] > i[None, :], Y, 0.0), DOT)
    written = operand(rows(a, token, count, head, H, d, D, CHUNK), DOT)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, ELU), DOT)
    F = features(k, token, count, head, H, d, D, CHUNK, ELU)
    K, norm = normalized(F, UNIT)
    dK = dot(Y, written, DOT, dK)
    da = dot(tl.trans(operand(tl.where(past, X, 0.0), DOT)), Q, DOT, da)
    da = dot(tl.trans(Y), K, DOT, da)
    by = column(gain, token, count, head, H, CHUNK)
    if GAIN == "unit":
        da = unit_backward(da, written.to(tl.float32), by[:, None])
    elif GAIN == "projection":
        along = tl.sum(da * written, 1)
        da = (da - along[:, None] * K) * by[:, None]
        dK -= along[:, None] * written
    store_rows(dP, da, token, count, head, H, d, D, CHUNK)
    if UNIT:
        dK = unit_backward(dK, K, norm)
    dK += tl.load(dz + at.to(tl.int64) * D + d, d < D, 0.0)[None, :]
    if NORMALIZE:
        slope = column(dD, token, count, head, H, CHUNK)
        dK = dot(tl.trans(operand(tl.where(past, slope[:, None], 0.0), DOT)), Q, DOT, dK)
    store_rows(dk, feature_backward(dK, F, ELU), token, count, head, H, d, D, CHUNK)
