"""Kernels of the backward of `memory`. kernels.py has the forward and the notation.

With dN = do / max(q.z, eps):

    turn        every chunk   Ta = T^-T a, B, K
    scan_backward  every head X = Ta dS^T, dV = R = W^T dN + X, dS0 = dS + dN^T B - X^T K, from the last chunk on
    unread      every chunk   dQ = dN S0 + tril(dN E^T) a, the gradients of the denominators and of z through them
    finish      every chunk   dK and da; from da the gradient dP of A k

The gradient of a decay is the sum of the terms that pass its token (chunk_decay.py). `unread` sums those of pairs of
tokens of the chunk and of queries that read S0: it has most of their factors in registers. `finish` adds the rest.

The gradient of beta is da . a, or E . dv / beta. With bfloat16 buffers the first is a small difference of large terms:
`unread` computes the second (BY_ERROR), and `finish` the first for beta of about 0.

Without ERROR, `turn` is needed only for the gates.
"""

import triton
import triton.language as tl

from varla.ops.memory.triton.kernels import CHUNK, inverse_of, place, strengths, times_column
from varla.ops.triton.algebra import between, decays, dot, feature_backward, features, last_of, operand, unit_backward
from varla.ops.triton.tiles import column, matrix, rows, store_column, store_rows

CLOSED = tl.constexpr(-87.3365447505531)  # the logarithm of the smallest float32: below, a decay has no gradient
SHUT = tl.constexpr(1e-20)  # a write strength below this is about 0: dv / beta would underflow


@triton.jit
def passing(pairs, reads, DOT: tl.constexpr):
    """The terms of log decays' gradient [CHUNK] that pass each token, before the last of them (chunk_decay.passing).

    Token t is passed by pairs [i, j] with i >= t > j, and by the reads of tokens i >= t.
    """
    SPLIT: tl.constexpr = "left" if DOT == "bf16" else DOT
    i = tl.arange(0, CHUNK)
    before = dot(pairs, tl.where(i[:, None] < i[None, :], 1.0, 0.0), SPLIT)  # [i, t]: the sum over j < t
    return tl.sum(tl.where(i[:, None] >= i[None, :], before + reads[:, None], 0.0), 0)


@triton.jit
def unread(
    q, k, a, beta, decay, norm, E, S0, z0, do, denominator, dv, dD, ddecay, dzsum, dq, dbeta, chunks, H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    DOT: tl.constexpr, ERROR: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, BY_ERROR: tl.constexpr,
):  # fmt: skip
    """dq, the gradient of the denominators dD [tokens, H], and the sum of dD q over each chunk, dzsum [chunks, H, D].

    With DECAY, ddecay [tokens, H] gets its part from pairs of tokens of the chunk, and from q that reads the S and z
    before it. With BY_ERROR, dbeta [tokens, H] gets E . dv / beta, for all beta but the smallest.

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
    Y = tl.zeros([CHUNK, CHUNK], tl.float32)
    gained = tl.zeros([CHUNK], tl.float32)
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        start = tl.exp(high + low)
    if NORMALIZE:
        under = column(denominator, token, count, head, H, CHUNK)
        inverse = inverse_of(under, eps)
    for begin in range(0, DV, BV):
        e = begin + tl.arange(0, BV)
        g = rows(do, token, count, head, H, e, DV, CHUNK)
        if NORMALIZE:
            g *= inverse[:, None]
        g = operand(g, DOT)
        residual = rows(E, token, count, head, H, e, DV, CHUNK)
        if BY_ERROR:
            gained += tl.sum(residual * rows(dv, token, count, head, H, e, DV, CHUNK), 1)
        X = dot(g, tl.trans(residual), DOT, X)
        if DECAY and ERROR:
            Y = dot(-rows(dv, token, count, head, H, e, DV, CHUNK), tl.trans(residual), DOT, Y)
        dQ = dot(g, matrix(S0, at, e, DV, d, D), DOT, dQ)
    if BY_ERROR:
        given = strengths(beta, token, count, head, H, BETA)
        store_column(dbeta, gained / tl.where(tl.abs(given) < SHUT, 1.0, given), token, count, head, H, CHUNK)
    if DECAY:
        dQ *= start[:, None]
        old = tl.sum(dQ * features(q, token, count, head, H, d, D, CHUNK, MAP), 1)
    X = tl.where(past, X, 0.0)
    if DECAY:
        X *= between(high, low, CHUNK)
    X *= strengths(beta, token, count, head, H, BETA)[None, :]
    dQ = dot(X, rows(a, token, count, head, H, d, D, CHUNK), DOT, dQ)
    Q = features(q, token, count, head, H, d, D, CHUNK, MAP)
    if DECAY:
        written = tl.trans(operand(rows(a, token, count, head, H, d, D, CHUNK), DOT))
        pairs = dot(Q, written, DOT) * X
        if ERROR:
            K = times_column(features(k, token, count, head, H, d, D, CHUNK, MAP), norm, token, count, head, H, UNIT)
            Y = tl.where(i[:, None] > i[None, :], Y, 0.0) * between(high, low, CHUNK)
            Y *= strengths(beta, token, count, head, H, BETA)[None, :]
            pairs += dot(K, written, DOT) * Y
    if NORMALIZE:
        along = tl.sum(Q * dQ, 1)
        F = features(k, token, count, head, H, d, D, CHUNK, MAP)
        before = tl.load(z0 + at.to(tl.int64) * D + d, d < D, 0.0)
        if DECAY:
            z = dot(between(high, low, CHUNK), F, DOT) + start[:, None] * before[None, :]
            old_z = tl.sum(Q * before[None, :], 1) * start
            near = dot(Q, tl.trans(F), DOT) * between(high, low, CHUNK)
        else:
            z = dot(tl.where(past, 1.0, 0.0), F, DOT) + before[None, :]
        slope = tl.where((under < eps) | (i >= count), 0.0, -inverse) * along
        dQ += slope[:, None] * z
        store_column(dD, slope, token, count, head, H, CHUNK)
        if DECAY:
            old += slope * old_z
            pairs += near * slope[:, None]
            tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * (slope * start)[:, None], 0), d < D)
        else:
            tl.store(dzsum + at.to(tl.int64) * D + d, tl.sum(Q * slope[:, None], 0), d < D)
    if DECAY:
        store_column(ddecay, passing(pairs, old, DOT), token, count, head, H, CHUNK)
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
    q, k, a, beta, decay, norm, gain, E, S0, z0, do, denominator, dD, dv, dS, dz, dk, dP, dbeta, ddecay, chunks,
    H, D, DV, eps,
    BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr, NORMALIZE: tl.constexpr,
    GAIN: tl.constexpr, DOT: tl.constexpr, ERROR: tl.constexpr, BY_CHUNK: tl.constexpr, BETA: tl.constexpr,
    DECAY: tl.constexpr, BY_ERROR: tl.constexpr,
):  # fmt: skip
    """dP [chunks, H, CHUNK, D], or [tokens, H, D] without BY_CHUNK, and dk without the gradient through a.

    dP is da with the gain's backward applied; for GAIN "raw" it is da. dP and dS may share memory: a program reads its
    own part before it writes. With gates also dbeta and ddecay [tokens, H], to which `unread` gave a part.
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
    held = tl.zeros([BV, BD], tl.float32)  # sums to S0 . dS after the chunk
    if DECAY:
        high, low = decays(decay, token, count, head, H, CHUNK)
        start = tl.exp(high + low)
        end = tl.exp((last_of(high, CHUNK) - high) + (last_of(low, CHUNK) - low))
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
            held += matrix(S0, at, e, DV, d, D) * matrix(dS, at, e, DV, d, D)
    if DECAY:
        dK *= start[:, None]
        da *= end[:, None]
        X *= between(high, low, CHUNK)
        Y *= between(high, low, CHUNK)
        whole = last_of(start, CHUNK) * tl.sum(held)
        writes = tl.sum(da * rows(a, token, count, head, H, d, D, CHUNK), 1)
        writes *= strengths(beta, token, count, head, H, BETA)
    Y = operand(tl.where(i[:, None] > i[None, :], Y, 0.0), DOT)
    Q = operand(features(q, token, count, head, H, d, D, CHUNK, MAP), DOT)
    da = dot(tl.trans(operand(tl.where(past, X, 0.0), DOT)), Q, DOT, da)
    K = times_column(features(k, token, count, head, H, d, D, CHUNK, MAP), norm, token, count, head, H, UNIT)
    if ERROR:
        da = dot(tl.trans(Y), K, DOT, da)
    if DECAY:
        reads = tl.sum(dK * K, 1)  # dK is still the gradient through S0, and 0 without ERROR
    if BETA:
        slopes = tl.sum(da * rows(a, token, count, head, H, d, D, CHUNK), 1)
        if BY_ERROR:  # `unread` wrote all others. The branch takes fewer registers than a masked store alone.
            shut = tl.abs(strengths(beta, token, count, head, H, BETA)) < SHUT
            if tl.max(shut.to(tl.int32), 0) > 0:
                tl.store(dbeta + token.to(tl.int64) * H + head + i * H, slopes, shut & (i < count))
        else:
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
        Y *= strengths(beta, token, count, head, H, BETA)[None, :]
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
            dK += dot(tl.trans(operand(share, DOT)), Q, DOT, dF)
        else:
            dK += dF
            dK = dot(tl.trans(operand(share, DOT)), Q, DOT, dK)
    else:
        dK += dF
    if DECAY:
        log = column(decay, token, count, head, H, CHUNK).to(tl.float32)
        slopes = column(ddecay, token, count, head, H, CHUNK) + whole
        earlier = tl.where(i > 0, tl.gather(writes, tl.maximum(i - 1, 0), 0), 0.0)
        slopes += tl.cumsum(reads, 0, reverse=True) + tl.cumsum(earlier, 0)
        slopes = tl.where(log < CLOSED, 0.0, slopes)
        store_column(ddecay, slopes, token, count, head, H, CHUNK)
    store_rows(dk, feature_backward(dK, F, MAP), token, count, head, H, d, D, CHUNK)
