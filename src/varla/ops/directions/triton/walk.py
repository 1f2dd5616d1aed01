"""Kernels that walk A: A goes through the tokens STEP at a time, and every x_t is multiplied by its own A_t.

One step, with r the refreshes before a token and r' those up to and including it (docs/math.md, section 3):

    W = U A + eta r U,   L L^T = I + tril(U W^T),   Z = L^-1 W
    Y = X A + eta r' X - tril(X Z^T) Z              row t is A_t x_t
    A <- A - Z^T Z + eta (refreshes) I

With X = K this gives P, from which the write direction a follows; with X = dP, in the backward, it gives G and dK.

Tiling: one program to a head and a *span* of tokens. A [D, D] lives in the accumulators of the tensor cores from the
first step to the last. All tiles of tokens are transposed, [D, STEP], so that A is always the left operand of a
product, which the tensor cores take from registers: A is never written to shared memory. A step of 16 tokens is the
smallest they take, and its Cholesky factor is one block that every warp works out for itself
(`tiles.cholesky_inverse`).
"""

import triton
import triton.language as tl

from varla.ops.triton.tiles import (
    cholesky_inverse,
    dot,
    feature_backward,
    featured,
    features,
    loaded,
    matrix,
    normalized,
    rows,
    store_matrix,
    store_rows,
    unit,
    unit_backward,
)

STEP = tl.constexpr(16)


@triton.jit
def span_of(spans, H):
    """(span, head, first token, number of tokens, sequence, place in the sequence, last of it?) of a program."""
    span, head = tl.program_id(0) // H, tl.program_id(0) % H
    at = spans + span * 5
    return span, head, tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit
def slot(chunk_first, sequence, position, head, H):
    """Row of a token, by its position in its sequence, where rows are kept chunk by chunk: [chunks, H, 64, D]."""
    return ((tl.load(chunk_first + sequence) + position // 64) * H + head) * 64 + position % 64


@triton.jit
def first_refresh(t, sequence, period):
    """Tokens until the next refresh, as int32, for a sequence that has seen t[sequence] tokens."""
    return tl.minimum(period - tl.load(t + sequence) % period, 0x3FFFFFFF).to(tl.int32)


@triton.jit
def refreshes(position, left, period):
    """How many of the first `position` tokens of a call end on a refresh; the first of them is `left` tokens away."""
    return tl.where(position < left, 0, 1 + (position - left) // period)


@triton.jit
def refreshed(position, count, left, period, eta):
    """eta times the refreshes of a step before each token, up to and including it [1, STEP], and in all."""
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
def scaled(x, scale, EXACT: tl.constexpr):
    """(X, c, U) with U = c X of length `scale`, from loaded tokens x. EXACT: X is x, which bfloat16 holds."""
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
    """L^-1 of one step, from W^T and what `scaled` says of U^T. `aside`: 256 floats of memory."""
    i = tl.arange(0, STEP)[:, None]
    j = tl.arange(0, STEP)[None, :]
    if EXACT:
        G = dot(tl.trans(W), X, "left") * c
        if REFRESH:
            G = tl.where(i > j, tl.trans(G), G)  # only the upper triangle is right
    else:
        G = dot(tl.trans(X), W, WALK)
        if REFRESH:
            G = tl.where(i < j, tl.trans(G), G)  # only the lower triangle is right
    return cholesky_inverse(G + tl.where(i == j, 1.0, 0.0), aside, WARPS)


@triton.jit
def past(X, Z, DOT: tl.constexpr):
    """tril(X Z^T)^T, from X^T and Z^T."""
    i = tl.arange(0, STEP)
    return tl.trans(tl.where(i[:, None] >= i[None, :], dot(tl.trans(X), Z, DOT), 0.0))


@triton.jit
def updated(A, Z, total, eye, REFRESH: tl.constexpr, WALK: tl.constexpr):
    """A after a step."""
    A = dot(-Z, tl.trans(Z), WALK, A)
    if REFRESH:
        A += tl.where(eye, total, 0.0)
    return A


@triton.jit(do_not_specialize=["period"])
def forward_walk(
    k, u, start, t, spans, kept, final, a, gain, Js, kept_first, scratch,
    H, D, scale, period, eta, kept_every,
    BD: tl.constexpr, UPDATE: tl.constexpr, REFRESH: tl.constexpr, GAIN: tl.constexpr,
    ELU: tl.constexpr, UNIT: tl.constexpr, PAST: tl.constexpr, WALK: tl.constexpr, EXACT: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Write directions a [tokens, H, D], the number P was multiplied by, gain [tokens, H], and L^-1 in Js.

    spans [*, 5]: (token, count, sequence, position, last). start [spans, H, D, D]: A before each. Where the spans are
    whole sequences, A is kept [*, H, D, D] every `kept_every` tokens of them; else that is 0. `final` is one for each
    sequence. Tokens are loaded a step ahead.
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
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        F = featured(next_k, more, d, D, STEP, ELU, True)
        direction, c, U = scaled(next_u, scale, EXACT)
        next_k = loaded(k, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
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
    k, u, gain, dP, dk, G, Zs, Ys, Js, PK, kept, t, spans, chunk_first,
    H, D, scale, period, eta,
    BD: tl.constexpr, UPDATE: tl.constexpr, REFRESH: tl.constexpr,
    ELU: tl.constexpr, UNIT: tl.constexpr, PAST: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """A_t dp_t for every token: added to dk, through the key's normalisation and feature map. Js is the forward's.

    Divided by the gain it is G, in place of dP: what A^-1 gets from a token, -sym(A dp (A k)^T), is then -sym(g a^T).
    With refresh, dP stays, and [tokens, H, D] G, Zs, Ys and PK get Phi(dP), Z, Y = L^-1 U and Phi(K), where
    Phi(X) = X - tril(X Z^T) Y.
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
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        U = unit(next_u.to(tl.float32), True)[0] * scale
        X = next_X.to(tl.float32)
        F = featured(next_k, more, d, D, STEP, ELU, True)
        sofar = next_dk.to(tl.float32)
        J = rows(Js, here, more, head, H, i, STEP, STEP)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        row = slot(chunk_first, sequence, position + begin, head, H)
        next_row = slot(chunk_first, sequence, position + begin + STEP, head, H)
        next_X = loaded(dP, next_row, more - STEP, 0, 1, d, D, STEP, True)
        next_k = loaded(k, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_dk = loaded(dk, here + STEP, more - STEP, head, H, d, D, STEP, True)
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
        store_rows(dk, sofar + feature_backward(Y, F, ELU), here, more, head, H, d, D, STEP, True)


@triton.jit(do_not_specialize=["period"])
def element_walk(
    u, t, spans, scratch, C, F, V, H, D, scale, period, eta,
    BD: tl.constexpr, WALK: tl.constexpr, EXACT: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """What a span does to A, whatever A is: A <- C + F (A^-1 + J)^-1 F^T, J the sum of v v^T over V [tokens, H, D].

    C walks as A does, from 0. With L, Z and Y = L^-1 U of its steps, F <- (I - Z^T Y) F from I, and Y F are the rows v.
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
        direction, c, U = scaled(next_u, scale, EXACT)
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


@triton.jit
def gradient_scan(Zs, Ys, PP, PK, final, initial, whole, H, D, BD: tl.constexpr, DOT: tl.constexpr):
    """With refresh: the gradient of A, from the last step of a sequence to the first. Z Lam takes the place of PK.

    Lam is the gradient of A after a step, Lam <- Pi^T Lam Pi + sym(Phi(dP)^T Phi(K)) with Pi = I - Z^T Y (docs/math.md,
    section 5). `final` and `initial` [sequences, H, D, D]. All loads of a step are before its products, whose operands
    pass through shared memory, behind a barrier: by the store, everyone has read.
    """
    LEFT: tl.constexpr = "left" if DOT == "bf16" else DOT
    sequence, head, token, count, _, _, _ = span_of(whole, H)
    d = tl.arange(0, BD)
    Lam = symmetric(matrix(final, sequence * H + head, d, D, d, D))
    steps = tl.cdiv(count, STEP)
    for n in range(0, steps):
        begin = (steps - 1 - n) * STEP
        here, more = token + begin, count - begin
        Z = rows(Zs, here, more, head, H, d, D, STEP, True)
        Y = rows(Ys, here, more, head, H, d, D, STEP, True)
        P = rows(PP, here, more, head, H, d, D, STEP, True) * 0.5
        K = rows(PK, here, more, head, H, d, D, STEP, True)
        X = dot(Lam, Z, LEFT)
        if BD == 16:  # a tile that a single warp could hold, and pass on without a barrier
            tl.debug_barrier()
        store_rows(PK, X, here, more, head, H, d, D, STEP, True)
        X -= 0.5 * dot(Y, dot(tl.trans(Z), X, DOT), DOT)
        Lam = dot(P, tl.trans(K), DOT, Lam)
        Lam = dot(K, tl.trans(P), DOT, Lam)
        Lam = dot(-Y, tl.trans(X), DOT, Lam)
        Lam = dot(X, -tl.trans(Y), DOT, Lam)
    store_matrix(initial, symmetric(Lam), sequence * H + head, d, D, d, D)


@triton.jit(do_not_specialize=["period"])
def factor_backward(
    k, u, dP, V, Zs, Js, X, rest, chunks, chunk_position, t,
    H, D, scale, period, eta,
    BD: tl.constexpr, STEPS: tl.constexpr, ELU: tl.constexpr, UNIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """With refresh: from V = Z Lam back through Z and the factorisation to W, every step by itself.

    With W = U A + eta r U, docs/math.md (section 5, local part) becomes dU = X A + rest, where X = dW - B' U and
    rest = eta (r dW - B' r U). X and rest [tokens, H, D]; A is that at the beginning of the step (`direction_walk`).
    """
    chunk, head = tl.program_id(0) // H, tl.program_id(0) % H
    token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
    sequence, position = tl.load(chunk_position + chunk * 2), tl.load(chunk_position + chunk * 2 + 1)
    d = tl.arange(0, BD)
    i = tl.arange(0, STEP)
    lower = i[:, None] >= i[None, :]
    half = tl.where(i[:, None] == i[None, :], 0.5, 1.0)
    left = first_refresh(t, sequence, period)
    for n in range(0, STEPS):
        here, more = token + n * STEP, count - n * STEP
        Z = rows(Zs, here, more, head, H, d, D, STEP)
        U = unit(rows(u, here, more, head, H, d, D, STEP))[0] * scale
        P = rows(dP, (chunk * H + head) * 64 + n * STEP, more, 0, 1, d, D, STEP)
        K = normalized(features(k, here, more, head, H, d, D, STEP, ELU), UNIT)[0]
        J = rows(Js, here, more, head, H, i, STEP, STEP)
        before = tl.reshape(refreshed(position + n * STEP, more, left, period, eta)[0], [STEP, 1])
        dZ = -2 * rows(V, here, more, head, H, d, D, STEP)
        dZ = dot(tl.trans(tl.where(lower, -dot(K, tl.trans(Z), DOT), 0.0)), P, DOT, dZ)
        dZ = dot(tl.trans(tl.where(lower, -dot(P, tl.trans(Z), DOT), 0.0)), K, DOT, dZ)
        B = tl.where(lower, dot(dZ, tl.trans(Z), DOT), 0.0) * half
        B = dot(tl.trans(J), dot(B, J, DOT), DOT)
        B = tl.where(lower, -(B + tl.trans(B)), 0.0) * half  # -B'
        dW = dot(tl.trans(B), U, DOT, dot(tl.trans(J), dZ, DOT))
        store_rows(X, dot(B, U, DOT, dW), here, more, head, H, d, D, STEP)
        store_rows(rest, dot(B, U * before, DOT, dW * before), here, more, head, H, d, D, STEP)


@triton.jit(do_not_specialize=["period"])
def direction_walk(
    u, X, rest, Zs, du, kept, t, spans,
    H, D, scale, period, eta,
    BD: tl.constexpr, DOT: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """With refresh: du, from dU = X A + rest. A walks by the Z that `backward_walk` left. du may lie where X does."""
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    eye = (d[:, None] == d[None, :]) & (d[:, None] < D)
    A = matrix(kept, span * H + head, d, D, d, D)
    left = first_refresh(t, sequence, period)
    for begin in range(0, count, STEP):
        here, more = token + begin, count - begin
        y, inverse = unit(rows(u, here, more, head, H, d, D, STEP, True), True)
        dU = dot(A, rows(X, here, more, head, H, d, D, STEP, True), DOT)
        dU += rows(rest, here, more, head, H, d, D, STEP, True)
        if BD == 16:
            tl.debug_barrier()
        store_rows(du, unit_backward(dU * scale, y, inverse, True), here, more, head, H, d, D, STEP, True)
        total = refreshed(position + begin, more, left, period, eta)[2]
        A = updated(A, rows(Zs, here, more, head, H, d, D, STEP, True), total, eye, True, WALK)
