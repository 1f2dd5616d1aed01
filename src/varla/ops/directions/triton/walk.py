"""The walks: kernels that carry A through the tokens, STEP at a time, and multiply every x_t by its own A_t.

One step, where r counts the refreshes before a token and r' those up to and including it (docs/math.md, section 3):

    W = U A + eta r U,   L L^T = I + tril(U W^T),   Z = L^-1 W
    Y = X A + eta r' X - tril(X Z^T) Z              row t is A_t x_t
    A <- A - Z^T Z + eta (refreshes) I

With X = K this gives P, and P gives the write directions a. In the backward, X = dP gives G and dK.

Tiling: there is one program for each head and *span* of tokens. A [D, D] stays in the accumulators of the tensor cores
from the first step to the last. All tiles of tokens are transposed, [D, STEP], so that A is always the left operand of
a product. The tensor cores read that operand from registers, so A is never written to shared memory. 16 tokens are the
smallest step that the tensor cores allow, and every warp computes the Cholesky factor of a step by itself
(`algebra.cholesky_inverse`). In the loops, `here` is the first token of a step and `more` the number of tokens from
there to the end of the span.
"""

import triton
import triton.language as tl

from varla.ops.triton.algebra import cholesky_inverse, dot, feature_backward, featured, normalized, unit, unit_backward
from varla.ops.triton.tiles import column, loaded, matrix, rows, store_matrix, store_rows

STEP = tl.constexpr(16)
TINY = tl.constexpr(1.0842021724855044e-19)  # the root of the smallest float32


@triton.jit
def span_of(spans, H):
    """(span, head, first token, number of tokens, sequence, position in it, whether it is its last span)."""
    span, head = tl.program_id(0) // H, tl.program_id(0) % H
    at = spans + span * 5
    return span, head, tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit
def slot(chunk_first, sequence, position, head, H):
    """The row of a token in a buffer [chunks, H, 64, D], from its position in its sequence."""
    return ((tl.load(chunk_first + sequence) + position // 64) * H + head) * 64 + position % 64


@triton.jit
def first_refresh(t, sequence, period):
    """Tokens until the first refresh of this call, as int32, for a sequence that has seen t[sequence] tokens."""
    return tl.minimum(period - tl.load(t + sequence) % period, 0x3FFFFFFF).to(tl.int32)


@triton.jit
def refreshes(position, left, period):
    """The number of refreshes in the first `position` tokens of a call, if the first comes after `left` tokens."""
    return tl.where(position < left, 0, 1 + (position - left) // period)


@triton.jit
def refreshed(position, count, left, period, eta):
    """eta times the refreshes of a step: (before each token [1, STEP], up to and including it [1, STEP], in total)."""
    i = tl.arange(0, STEP)[None, :]
    base = refreshes(position, left, period)
    before = (refreshes(position + i, left, period) - base).to(tl.float32) * eta
    until = (refreshes(position + i + 1, left, period) - base).to(tl.float32) * eta
    return before, until, (refreshes(position + tl.minimum(count, STEP), left, period) - base).to(tl.float32) * eta


@triton.jit
def symmetric(A):
    """(A + A^T) / 2."""
    return (A + tl.trans(A)) * 0.5


@triton.jit
def lengths(strength, scale, token, count, head, H, N: tl.constexpr, STRENGTH: tl.constexpr):
    """|u| of a tile's tokens [N]: the root of their strengths; without STRENGTH, `scale`.

    Strengths of 0 are replaced by tiny ones, as in DirectionSettings.lengths_of_u.
    """
    if STRENGTH:
        w = column(strength, token, count, head, H, N).to(tl.float32)
        return tl.sqrt(tl.where(w < TINY, TINY, w))
    else:
        return tl.full([N], 1.0, tl.float32) * scale


@triton.jit
def scaled(x, scale, EXACT: tl.constexpr):
    """(X, c, U) from loaded tokens x, where U = c X has length `scale` [1, STEP]. EXACT: X = x, which is bfloat16."""
    U, inverse = unit(x.to(tl.float32), True)
    if EXACT:
        return x, inverse * scale, U * scale
    else:
        return U * scale, tl.full([1, STEP], 1.0, tl.float32), U * scale


@triton.jit
def times_U(x, X, c, EXACT: tl.constexpr, WALK: tl.constexpr):
    """x U, with X and c from `scaled`."""
    if EXACT:
        return dot(x, X, "left") * c
    else:
        return dot(x, X, WALK)


@triton.jit
def lower_factor(X, c, W, aside, REFRESH: tl.constexpr, EXACT: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """L^-1 of one step, from W^T and the X, c of `scaled`. `aside`: 256 floats of memory."""
    i = tl.arange(0, STEP)[:, None]
    j = tl.arange(0, STEP)[None, :]
    if EXACT:
        G = dot(tl.trans(W), X, "left") * c
        if REFRESH:
            G = tl.where(i > j, tl.trans(G), G)  # only the upper triangle is valid
    else:
        G = dot(tl.trans(X), W, WALK)
        if REFRESH:
            G = tl.where(i < j, tl.trans(G), G)  # only the lower triangle is valid
    return cholesky_inverse(G + tl.where(i == j, 1.0, 0.0), aside, WARPS)


@triton.jit
def past(X, Z, DOT: tl.constexpr):
    """tril(X Z^T)^T, from X^T and Z^T."""
    i = tl.arange(0, STEP)
    return tl.trans(tl.where(i[:, None] >= i[None, :], dot(tl.trans(X), Z, DOT), 0.0))


@triton.jit
def updated(A, Z, total, eye, REFRESH: tl.constexpr, WALK: tl.constexpr):
    """A after a step: A - Z^T Z + total I, from Z^T."""
    A = dot(-Z, tl.trans(Z), WALK, A)
    if REFRESH:
        A += tl.where(eye, total, 0.0)
    return A


@triton.jit(do_not_specialize=["period"])
def forward_walk(
    k, u, strength, start, t, spans, kept, final, a, gain, Js, kept_first, scratch,
    H, D, scale, period, eta, kept_every,
    BD: tl.constexpr, UPDATE: tl.constexpr, REFRESH: tl.constexpr, STRENGTH: tl.constexpr, GAIN: tl.constexpr,
    MAP: tl.constexpr, UNIT: tl.constexpr, PAST: tl.constexpr, WALK: tl.constexpr, EXACT: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Write directions a [tokens, H, D], the factors gain [tokens, H] from P to a, and L^-1 of every step in Js.

    spans [*, 5]: (token, count, sequence, position, last). start [spans, H, D, D]: A before each span. If the spans are
    whole sequences, A is stored in kept [*, H, D, D] every `kept_every` tokens; else `kept_every` is 0. `final` gets A
    after each sequence. Tokens are loaded one step ahead.
    """
    span, head, token, count, sequence, position, last = span_of(spans, H)
    d = tl.arange(0, BD)
    i = tl.arange(0, STEP)
    eye = (d[:, None] == d[None, :]) & (d[:, None] < D)
    A = symmetric(matrix(start, span * H + head, d, D, d, D))
    left = first_refresh(t, sequence, period)
    aside = scratch + tl.program_id(0) * 256
    next_k = loaded(k, token, count, head, H, d, D, STEP, True)
    next_u = loaded(u, token, count, head, H, d, D, STEP, True)
    next_length = lengths(strength, scale, token, count, head, H, STEP, STRENGTH)
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        F = featured(next_k, more, d, D, STEP, MAP, True)
        direction, c, U = scaled(next_u, next_length[None, :], EXACT)
        next_k = loaded(k, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_length = lengths(strength, scale, here + STEP, more - STEP, head, H, STEP, STRENGTH)
        if kept_every > 0:
            if begin % kept_every == 0:
                store_matrix(kept, A, (tl.load(kept_first + sequence) + begin // kept_every) * H + head, d, D, d, D)
        K = normalized(F, UNIT, True)[0]
        P = dot(A, K, WALK)
        if UPDATE:
            before, until, total = refreshed(position + begin, more, left, period, eta)
            W = times_U(A, direction, c, EXACT, WALK)
            if REFRESH:
                W += U * before
                P += K * until
            J = lower_factor(direction, c, W, aside, REFRESH, EXACT, WALK, WARPS)
            store_rows(Js, J, here, more, head, H, i, STEP, STEP)
            Z = dot(W, tl.trans(J), WALK)
            P = dot(-Z, past(K, Z, PAST), PAST, P)
            A = updated(A, Z, total, eye, REFRESH, WALK)
        if GAIN == "unit":
            P, by = unit(P, True)
        elif GAIN == "projection":
            along = tl.sum(K * P, 0, keep_dims=True)
            by = tl.where(along == 0, 0.0, 1 / tl.where(along == 0, 1.0, along))
            P *= by
        else:
            by = tl.full([1, STEP], 1.0, tl.float32)
        store_rows(a, P, here, more, head, H, d, D, STEP, True)
        tl.store(gain + (here + i[None, :]).to(tl.int64) * H + head, by, i[None, :] < more)
    if last != 0:
        store_matrix(final, symmetric(A), sequence * H + head, d, D, d, D)


@triton.jit(do_not_specialize=["period"])
def backward_walk(
    k, u, strength, gain, dP, dk, G, Zs, Ys, Js, PK, kept, t, spans, chunk_first,
    H, D, scale, period, eta,
    BD: tl.constexpr, UPDATE: tl.constexpr, REFRESH: tl.constexpr, STRENGTH: tl.constexpr,
    MAP: tl.constexpr, UNIT: tl.constexpr, PAST: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Compute A_t dp_t for every token and add it to dk, through the key's normalisation and feature map.

    Js comes from the forward. Without refresh, A_t dp_t divided by the gain is stored over dP, as G. A token's gradient
    of A^-1, which is -sym(A dp (A k)^T), is then -sym(g a^T). With refresh, dP is not changed, and G, Zs, Ys and PK
    [tokens, H, D] get Phi(dP), Z, Y = L^-1 U and Phi(K), where Phi(X) = X - tril(X Z^T) Y.
    """
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    i = tl.arange(0, STEP)
    eye = (d[:, None] == d[None, :]) & (d[:, None] < D)
    A = matrix(kept, span * H + head, d, D, d, D)
    left = first_refresh(t, sequence, period)
    next_u = loaded(u, token, count, head, H, d, D, STEP, True)
    next_X = loaded(dP, slot(chunk_first, sequence, position, head, H), count, 0, 1, d, D, STEP, True)
    next_k = loaded(k, token, count, head, H, d, D, STEP, True)
    next_dk = loaded(dk, token, count, head, H, d, D, STEP, True)
    next_length = lengths(strength, scale, token, count, head, H, STEP, STRENGTH)
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        U = unit(next_u.to(tl.float32), True)[0] * next_length[None, :]
        X = next_X.to(tl.float32)
        F = featured(next_k, more, d, D, STEP, MAP, True)
        sofar = next_dk.to(tl.float32)
        J = rows(Js, here, more, head, H, i, STEP, STEP)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        row = slot(chunk_first, sequence, position + begin, head, H)
        next_row = slot(chunk_first, sequence, position + begin + STEP, head, H)
        next_X = loaded(dP, next_row, more - STEP, 0, 1, d, D, STEP, True)
        next_k = loaded(k, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_dk = loaded(dk, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_length = lengths(strength, scale, here + STEP, more - STEP, head, H, STEP, STRENGTH)
        K, inverse = normalized(F, UNIT, True)
        Y = dot(A, X, WALK)
        if UPDATE:
            before, until, total = refreshed(position + begin, more, left, period, eta)
            W = dot(A, U, WALK)
            if REFRESH:
                W += U * before
                Y += X * until
            Z = dot(W, tl.trans(J), WALK)
            R = past(X, Z, PAST)
            Y = dot(-Z, R, PAST, Y)
            A = updated(A, Z, total, eye, REFRESH, WALK)
            if REFRESH:
                L = dot(U, tl.trans(J), WALK)
                store_rows(Zs, Z, here, more, head, H, d, D, STEP, True)
                store_rows(Ys, L, here, more, head, H, d, D, STEP, True)
                store_rows(PK, dot(-L, past(K, Z, PAST), PAST, K), here, more, head, H, d, D, STEP, True)
                store_rows(G, dot(-L, R, PAST, X), here, more, head, H, d, D, STEP, True)
        if UPDATE and not REFRESH:
            by = tl.load(gain + (here + i[None, :]).to(tl.int64) * H + head, i[None, :] < more, 0.0)
            by = tl.where(by == 0, 0.0, 1 / tl.where(by == 0, 1.0, by))
            store_rows(dP, Y * by, row, more, 0, 1, d, D, STEP, True)
        if UNIT:
            Y = unit_backward(Y, K, inverse, True)
        store_rows(dk, sofar + feature_backward(Y, F, MAP), here, more, head, H, d, D, STEP, True)


@triton.jit(do_not_specialize=["period"])
def element_walk(
    u, strength, t, spans, scratch, C, F, V, H, D, scale, period, eta,
    BD: tl.constexpr, STRENGTH: tl.constexpr, WALK: tl.constexpr, EXACT: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The map of a span: A <- C + F (A^-1 + J)^-1 F^T for any A, where J is the sum of v v^T over V [tokens, H, D].

    C follows the recurrence of A from C = 0. With L, Z and Y = L^-1 U of its steps, F <- (I - Z^T Y) F from F = I, and
    the rows v are Y F.
    """
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    eye = (d[:, None] == d[None, :]) & (d[:, None] < D)
    X = tl.zeros([BD, BD], tl.float32)
    E = tl.where(eye, 1.0, 0.0)  # F^T
    left = first_refresh(t, sequence, period)
    aside = scratch + tl.program_id(0) * 256
    next_u = loaded(u, token, count, head, H, d, D, STEP, True)
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        length = lengths(strength, scale, here, more, head, H, STEP, STRENGTH)
        direction, c, U = scaled(next_u, length[None, :], EXACT)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        before, until, total = refreshed(position + begin, more, left, period, eta)
        W = times_U(X, direction, c, EXACT, WALK) + U * before
        v = times_U(E, direction, c, EXACT, WALK)
        J = lower_factor(direction, c, W, aside, True, EXACT, WALK, WARPS)
        Z = dot(W, tl.trans(J), WALK)
        v = dot(v, tl.trans(J), WALK)
        store_rows(V, v, here, more, head, H, d, D, STEP, True)
        E = dot(-v, tl.trans(Z), WALK, E)
        X = updated(X, Z, total, eye, True, WALK)
    store_matrix(C, symmetric(X), span * H + head, d, D, d, D)
    store_matrix(F, tl.trans(E), span * H + head, d, D, d, D)
