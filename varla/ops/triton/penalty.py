"""Kernels of the A part: A walks through the tokens STEP at a time, and every x_t is multiplied by its own A_t.

One step, with r the refreshes before a token and r' those up to and including it (docs/math.md, section 3):

    W = U A + eta r U,   L L^T = I + tril(U W^T),   Z = L^-1 W
    Y = X A + eta r' X - tril(X Z^T) Z              row t is A_t x_t
    A <- A - Z^T Z + eta (refreshes) I

With X = K this gives P, from which the write direction a follows; with X = dP, in the backward, it gives G and dK.

Tiling: one program to a head and a *span* of tokens. A [D, D] lives in the accumulators of the tensor cores from the
first step to the last. All tiles of tokens are transposed, [D, STEP], so that A is always the left operand of a
product, which the tensor cores take from registers: A is never written to shared memory. A step of 16 tokens is the
smallest they take, and its Cholesky factor is one block that every warp works out for itself
(`pieces.cholesky_inverse`).
"""

import triton
import triton.language as tl

from varla.ops.triton.pieces import (
    cholesky_inverse,
    dot,
    feature_backward,
    featured,
    features,
    loaded,
    matrix,
    normalized,
    operand,
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
def beat(position, count, left, period, eta):
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
def directions(x, scale, EXACT: tl.constexpr):
    """(X, c, U) with U = c X of length `scale`, from loaded tokens x. EXACT: X is x, which bfloat16 holds."""
    U, inverse = unit(x.to(tl.float32), True)
    if EXACT:
        return x, inverse * scale, U * scale
    else:
        return U * scale, tl.full([1, STEP], 1.0, tl.float32), U * scale


@triton.jit
def times_U(x, X, c, EXACT: tl.constexpr, WALK: tl.constexpr):
    """x U, with X and c from `directions`."""
    if EXACT:
        return dot(x, X, "left") * c
    else:
        return dot(x, X, WALK)


@triton.jit
def lower_factor(X, c, W, aside, REFRESH: tl.constexpr, EXACT: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """L^-1 of one step, from W^T and what `directions` says of U^T. `aside`: 256 floats of memory."""
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
        direction, c, U = directions(next_u, scale, EXACT)
        next_k = loaded(k, here + STEP, more - STEP, head, H, d, D, STEP, True)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        if kept_every > 0:
            if begin % kept_every == 0:
                store_matrix(kept, A, (tl.load(kept_first + sequence) + begin // kept_every) * H + head, d, D, d, D)
        K = normalized(F, UNIT, True)[0]
        P = dot(A, K, WALK)
        if UPDATE:
            before, until, total = beat(position + begin, more, left, period, eta)
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
            before, until, total = beat(position + begin, more, left, period, eta)
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


@triton.jit
def square_sum(
    u, spans, out, H, D, scale, BD: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, WALK: tl.constexpr
):
    """U^T U of each span: out [spans, H, D, D]. The rows of U are those of u, normalised to length `scale` if UNIT."""
    span, head, token, count, _, _, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for begin in range(0, count, BLOCK):
        U = rows(u, token + begin, count - begin, head, H, d, D, BLOCK, True)
        if UNIT:
            U = unit(U, True)[0] * scale
        total = dot(U, tl.trans(U), WALK, total)
    store_matrix(out, total, span * H + head, d, D, d, D)


@triton.jit
def running_sum(x, initial, total, first, H, SIZE, REVERSE: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr):
    """x [*, H, SIZE] to `initial` [sequences, H, SIZE] plus the sum of what comes earlier (REVERSE: later), in place.

    Entry n of x belongs to sequence s where first[s] <= n < first[s + 1]. `total` gets initial plus the whole sum.
    """
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, ENTRIES)
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    own = (sequence * H + head).to(tl.int64) * SIZE + i
    running = tl.load(initial + own, i < SIZE, 0.0)
    for done in range(0, end - begin, ENTRIES):
        index = end - 1 - done - n if REVERSE else begin + done + n
        where = x + (index * H + head).to(tl.int64)[:, None] * SIZE + i[None, :]
        inside = (done + n < end - begin)[:, None] & (i < SIZE)[None, :]
        here = tl.load(where, inside, 0.0)
        tl.store(where, running[None, :] + (tl.cumsum(here, 0) - here), inside)
        running += tl.sum(here, 0)
    tl.store(total + own, running, i < SIZE)


@triton.jit
def inverse(M, aside, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """The inverse of M [BD, BD], of which D x D are symmetric positive definite, by sweeping 16 rows at a time.

    Sweeping rows b with M_bb = L L^T and V = L^-1 M_b., its block b replaced by L^-1:
    M <- M - V^T V, but +V^T V where exactly one index is in b, and -V^T V where both are. After all rows, M is -M^-1.
    `aside`: 16 (BD + 16) floats of memory.
    """
    d = tl.arange(0, BD)
    i = tl.arange(0, STEP)
    M += tl.where((d[:, None] == d[None, :]) & (d[:, None] >= D), 1.0, 0.0)
    factors = aside + STEP * BD
    for b in range(0, BD, STEP):
        inside = (d >= b) & (d < b + STEP)
        tl.debug_barrier()
        tl.store(aside + d[:, None] * STEP + d[None, :] - b, M, inside[None, :] & (d[:, None] < BD))
        tl.debug_barrier()
        R = tl.load(aside + d[:, None] * STEP + i[None, :])  # columns b, which are rows b: M is symmetric
        J = cholesky_inverse(tl.load(aside + (b + i[:, None]) * STEP + i[None, :]), factors, WARPS)
        own = tl.load(factors + i[None, :] * STEP + d[:, None] - b, inside[:, None], 0.0)
        V = tl.where(inside[:, None], own, dot(R, tl.trans(J), WALK))
        change = dot(V, tl.trans(V), WALK)
        M = tl.where(inside[:, None] != inside[None, :], change, tl.where(inside[:, None], 0.0, M) - change)
    return tl.where((d[:, None] < D) & (d[None, :] < D), -M, 0.0)


@triton.jit
def invert(x, out, scratch, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """out = the inverse of every symmetric positive definite x [*, D, D]. They may be the same memory."""
    entry = tl.program_id(0)
    d = tl.arange(0, BD)
    aside = scratch + entry.to(tl.int64) * (STEP * (BD + STEP))
    M = symmetric(matrix(x, entry, d, D, d, D))
    store_matrix(out, inverse(M, aside, D, BD, WALK, WARPS), entry, d, D, d, D)


@triton.jit
def invert_spans(x, initial, spans, scratch, H, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """The same for the spans of sequences, x [spans, H, D, D] in place; but the first of each becomes `initial`."""
    span, head, _, _, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    aside = scratch + tl.program_id(0).to(tl.int64) * (STEP * (BD + STEP))
    if position == 0:
        M = symmetric(matrix(initial, sequence * H + head, d, D, d, D))
    else:
        M = inverse(symmetric(matrix(x, span * H + head, d, D, d, D)), aside, D, BD, WALK, WARPS)
    store_matrix(x, M, span * H + head, d, D, d, D)


@triton.jit
def sandwich(x, y, out, D, BD: tl.constexpr, BLOCK: tl.constexpr, WALK: tl.constexpr):
    """out = -X sym(Y) X for symmetric X, BLOCK columns of it: a gradient through an inverse. All [*, D, D]."""
    entry = tl.program_id(0)
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    Y = symmetric(matrix(y, entry, d, D, d, D))
    half = dot(Y, matrix(x, entry, d, D, e, D), WALK)
    store_matrix(out, -dot(matrix(x, entry, d, D, d, D), half, WALK), entry, d, D, e, D)


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
        direction, c, U = directions(next_u, scale, EXACT)
        next_u = loaded(u, here + STEP, more - STEP, head, H, d, D, STEP, True)
        before, until, total = beat(position + begin, more, left, period, eta)
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
def compose(initial, C, F, J, starts, first, scratch, H, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """A before every span, starts [spans, H, D, D], from what each span does (`element_walk`), in their order."""
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    d = tl.arange(0, BD)
    aside = scratch + tl.program_id(0).to(tl.int64) * (STEP * (BD + STEP))
    A = symmetric(matrix(initial, sequence * H + head, d, D, d, D))
    end = tl.load(first + sequence + 1)
    for span in range(tl.load(first + sequence), end):
        at = span * H + head
        store_matrix(starts, A, at, d, D, d, D)
        if span + 1 < end:
            M = inverse(A, aside, D, BD, WALK, WARPS) + matrix(J, at, d, D, d, D)
            X = inverse(symmetric(M), aside, D, BD, WALK, WARPS)
            L = matrix(F, at, d, D, d, D)
            A = symmetric(dot(dot(L, X, WALK), tl.trans(L), WALK) + matrix(C, at, d, D, d, D))


@triton.jit
def outer_sum(
    G, a, k, spans, chunk_first, out, H, D,
    BD: tl.constexpr, BLOCK: tl.constexpr, FIXED: tl.constexpr,
    ELU: tl.constexpr, UNIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """-sym(G^T a) of each span: out [spans, H, D, D]. FIXED: sym(G^T K), G being dP. G [chunks, H, 64, D]."""
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    LEFT: tl.constexpr = "left" if DOT == "bf16" else DOT
    d = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for begin in range(0, count, BLOCK):
        here, more = token + begin, count - begin
        if FIXED:
            X = normalized(features(k, here, more, head, H, d, D, BLOCK, ELU), UNIT)[0]
        else:
            X = -rows(a, here, more, head, H, d, D, BLOCK)
        row = slot(chunk_first, sequence, position + begin, head, H)
        total = dot(tl.trans(rows(G, row, more, 0, 1, d, D, BLOCK)), X, LEFT, total)
    store_matrix(out, symmetric(total), span * H + head, d, D, d, D)


@triton.jit
def direction_backward(
    u, a, G, dM, du, spans, chunk_first, H, D, scale, BD: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr
):
    """du without refresh. dM [spans, H, D, D]: gradient of A^-1 after each span.

    A^-1 only ever gains u u^T, so its gradient is a running sum of -sym(g_t a_t^T) from the right, and
    dU = 2 U dM - triu(U a^T) G - triu(U G^T) a, dM being that after the block: linear attention, reversed.
    a is exact in bfloat16; G [chunks, H, 64, D] and dM are not, and keep 16 bits.
    """
    LEFT: tl.constexpr = "left" if DOT == "bf16" else DOT
    RIGHT: tl.constexpr = "right" if DOT == "bf16" else DOT
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    later = tl.arange(0, BLOCK)[:, None] <= tl.arange(0, BLOCK)[None, :]
    M = matrix(dM, span * H + head, d, D, d, D)
    blocks = tl.cdiv(count, BLOCK)
    for n in range(0, blocks):
        begin = (blocks - 1 - n) * BLOCK
        here, more = token + begin, count - begin
        y, inverse = unit(rows(u, here, more, head, H, d, D, BLOCK))
        P = operand(rows(a, here, more, head, H, d, D, BLOCK), DOT)
        X = rows(G, slot(chunk_first, sequence, position + begin, head, H), more, 0, 1, d, D, BLOCK) * -0.5
        dU = dot(y, M, RIGHT)  # half of it
        dU = dot(tl.where(later, dot(y, tl.trans(P), DOT), 0.0), X, RIGHT, dU)
        dU = dot(tl.where(later, dot(y, tl.trans(X), RIGHT), 0.0), P, DOT, dU)
        store_rows(du, unit_backward(dU * (2 * scale * scale), y, inverse), here, more, head, H, d, D, BLOCK)
        M = dot(tl.trans(X), P, LEFT, M)
        M = dot(tl.trans(P), X, RIGHT, M)


@triton.jit
def gradient_scan(Zs, Ys, PP, PK, final, initial, V, whole, H, D, BD: tl.constexpr, DOT: tl.constexpr):
    """With refresh: the gradient of A, from the last step of a sequence to the first. V [tokens, H, D] gets Z Lam.

    Lam is the gradient of A after a step, Lam <- Pi^T Lam Pi + sym(Phi(dP)^T Phi(K)) with Pi = I - Z^T Y (docs/math.md,
    section 5). `final` and `initial` [sequences, H, D, D].
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
        store_rows(V, X, here, more, head, H, d, D, STEP, True)
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
        before = tl.reshape(beat(position + n * STEP, more, left, period, eta)[0], [STEP, 1])
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
    """With refresh: du, from dU = X A + rest. A walks by the Z that `backward_walk` left."""
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
        store_rows(du, unit_backward(dU * scale, y, inverse, True), here, more, head, H, d, D, STEP, True)
        total = beat(position + begin, more, left, period, eta)[2]
        A = updated(A, rows(Zs, here, more, head, H, d, D, STEP, True), total, eye, True, WALK)
