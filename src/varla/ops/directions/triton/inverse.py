"""Kernels that work on A^-1. Without refresh, every token only adds u u^T to it (docs/math.md, section 7).

    square_sum, running_sum, invert, invert_spans   A before every span, from sums of u u^T and their inverses
    outer_sum, running_sum, direction_backward      the gradient of A^-1, a sum over later tokens, and du from it
    log_sum, faded_sum, faded_gradient              with forgetting: instead of running_sum
    fade                                            with forgetting: before one token
    sandwich                                        a gradient from A to A^-1 or back
    compose                                         with refresh: A before every span, from the map of each span

For the sums there is one program for each head and span. A^-1 is a tile [D, D] in registers. In the loops, `here` is
the first token of a step and `more` the number of tokens from there to the end of the span.
"""

import triton
import triton.language as tl

from varla.ops.directions.triton.walk import STEP, lengths, slot, span_of, symmetric
from varla.ops.triton.algebra import cholesky_inverse, dot, features, normalized, operand, unit, unit_backward
from varla.ops.triton.tiles import column, matrix, rows, store_column, store_matrix, store_rows

PART = tl.constexpr(512)  # entries of a matrix for one program of the faded sums


@triton.jit
def square_sum(
    u, strength, spans, out, H, D, scale, BD: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr,
    STRENGTH: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """out [spans, H, D, D] = U^T U of each span. U is u, with rows normalised to their `lengths` if UNIT."""
    span, head, token, count, _, _, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for begin in range(0, count, BLOCK):
        U = rows(u, token + begin, count - begin, head, H, d, D, BLOCK, True)
        if UNIT:
            length = lengths(strength, scale, token + begin, count - begin, head, H, BLOCK, STRENGTH)
            U = unit(U, True)[0] * length[None, :]
        total = dot(U, tl.trans(U), WALK, total)
    store_matrix(out, total, span * H + head, d, D, d, D)


@triton.jit
def inverse(M, aside, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """The inverse of M [BD, BD], whose leading D x D block is symmetric positive definite, by the sweep operator.

    A sweep takes 16 rows b. With M_bb = L L^T and V = L^-1 M_b., where block b of V is replaced by L^-1, an entry of M
    becomes M - V^T V if neither index is in b, V^T V if exactly one is, and -V^T V if both are. After all sweeps, M has
    become minus its inverse. `aside`: 16 (BD + 16) floats of memory.
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
        R = tl.load(aside + d[:, None] * STEP + i[None, :])  # columns b, equal to rows b because M is symmetric
        J = cholesky_inverse(tl.load(aside + (b + i[:, None]) * STEP + i[None, :]), factors, WARPS)
        own = tl.load(factors + i[None, :] * STEP + d[:, None] - b, inside[:, None], 0.0)
        V = tl.where(inside[:, None], own, dot(R, tl.trans(J), WALK))
        change = dot(V, tl.trans(V), WALK)
        M = tl.where(inside[:, None] != inside[None, :], change, tl.where(inside[:, None], 0.0, M) - change)
    return tl.where((d[:, None] < D) & (d[None, :] < D), -M, 0.0)


@triton.jit
def invert(x, out, scratch, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """out = the inverse of every symmetric positive definite x [*, D, D]. x and out may share memory."""
    entry = tl.program_id(0)
    d = tl.arange(0, BD)
    aside = scratch + entry.to(tl.int64) * (STEP * (BD + STEP))
    M = symmetric(matrix(x, entry, d, D, d, D))
    store_matrix(out, inverse(M, aside, D, BD, WALK, WARPS), entry, d, D, d, D)


@triton.jit
def invert_spans(
    x, out, initial, spans, scratch, H, D, prior, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr
):
    """out = (prior I + x)^-1 for x [spans, H, D, D], but `initial` for the first span of each sequence.

    x and out may share memory.
    """
    span, head, _, _, sequence, position, _ = span_of(spans, H)
    d = tl.arange(0, BD)
    aside = scratch + tl.program_id(0).to(tl.int64) * (STEP * (BD + STEP))
    if position == 0:
        M = symmetric(matrix(initial, sequence * H + head, d, D, d, D))
    else:
        M = symmetric(matrix(x, span * H + head, d, D, d, D)) + tl.where(d[:, None] == d[None, :], prior, 0.0)
        M = inverse(M, aside, D, BD, WALK, WARPS)
    store_matrix(out, M, span * H + head, d, D, d, D)


@triton.jit
def log_sum(forget, spans, out, H, BLOCK: tl.constexpr):
    """out [spans, H] = the sum of forget [tokens, H] over each span."""
    span, head, token, count, _, _, _ = span_of(spans, H)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, count, BLOCK):
        total += column(forget, token + begin, count - begin, head, H, BLOCK).to(tl.float32)
    tl.store(out + span * H + head, tl.sum(total, 0))


@triton.jit(do_not_specialize=["every"])
def faded_sum(x, log, initial, f, first, H, D, prior, every, parts):
    """Replace the sums x [spans, H, D, D] of w u u^T over each span by Y = A^-1 - prior I before the span.

    After `every` spans Y fades: Y <- C Y, with C = exp(the sum of their logs [spans, H]). initial [sequences, H, D, D]
    is A^-1 before each sequence. f [sequences, H] gets the sum of the logs since the last beat.
    """
    # Neighbouring programs have neighbouring parts of a matrix: matrices lie at large powers of two from each other.
    own, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    sequence, head = own // H, own % H
    i = part * PART + tl.arange(0, PART)
    inside = i < D * D
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    Y = tl.load(initial + own.to(tl.int64) * D * D + i, inside, 0.0) - tl.where(i // D == i % D, prior, 0.0)
    since = tl.zeros([], tl.float32)
    where = x + (begin * H + head).to(tl.int64) * D * D + i
    gained = tl.load(where, inside, 0.0)
    for span in range(begin, end):
        following = tl.load(where + H * D * D, inside & (span + 1 < end), 0.0)  # loads while the others compute
        tl.store(where, Y, inside)
        where += H * D * D
        Y += gained
        gained = following
        since += tl.load(log + span * H + head)
        if ((span - begin + 1) % every == 0) & (span + 1 < end):
            Y *= tl.exp(since)
            since = tl.zeros([], tl.float32)
    if part == 0:
        tl.store(f + own, since)


@triton.jit(do_not_specialize=["every"])
def faded_gradient(x, Ys, log, last, df, total, slopes, first, H, D, every, parts):
    """The backward of `faded_sum`, from the last span to the first.

    Replaces the gradients x [spans, H, D, D] of A^-1 from the tokens of each span by those from all later ones. `last`
    and `total` [sequences, H, D, D] are the gradients of A^-1 after and before each sequence, df [sequences, H] that of
    f. slopes [spans, H, parts] get the gradients of the logs, a share of each part.
    """
    own, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    sequence, head = own // H, own % H
    i = part * PART + tl.arange(0, PART)
    inside = i < D * D
    begin, end = tl.load(first + sequence), tl.load(first + sequence + 1)
    dY = tl.load(last + own.to(tl.int64) * D * D + i, inside, 0.0)
    slope = tl.where(part == 0, tl.load(df + own), 0.0)
    for back in range(end - begin):
        span = end - 1 - back
        at = (span * H + head).to(tl.int64)
        if ((span - begin + 1) % every == 0) & (back > 0):
            Y = tl.load(Ys + (at + H) * D * D + i, inside, 0.0)
            slope = tl.sum(dY * Y, 0)
            since = tl.zeros([], tl.float32)
            for n in range(every):
                since += tl.load(log + at - n * H)
            dY *= tl.exp(since)
        here = tl.load(x + at * D * D + i, inside, 0.0)
        tl.store(x + at * D * D + i, dY, inside)
        dY += here
        tl.store(slopes + at * parts + part, slope)
    tl.store(total + own.to(tl.int64) * D * D + i, dY, inside)


@triton.jit
def sandwich(x, y, out, D, BD: tl.constexpr, BLOCK: tl.constexpr, WALK: tl.constexpr):
    """out = -X sym(Y) X for symmetric X: a gradient through an inverse. All [*, D, D]; a program has BLOCK columns."""
    entry = tl.program_id(0)
    d = tl.arange(0, BD)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    Y = symmetric(matrix(y, entry, d, D, d, D))
    half = dot(Y, matrix(x, entry, d, D, e, D), WALK)
    store_matrix(out, -dot(matrix(x, entry, d, D, d, D), half, WALK), entry, d, D, e, D)


@triton.jit
def compose(initial, C, F, J, starts, first, scratch, H, D, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """starts [spans, H, D, D], A before every span: apply the maps of the spans (`element_walk`) in order."""
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


@triton.jit(do_not_specialize=["beat"])
def fade(A, f, t, forget, scratch, H, D, prior, beat, BD: tl.constexpr, WALK: tl.constexpr, WARPS: tl.constexpr):
    """What comes before one token of each row: A [B H, D, D] fades if it is due, and f [B H] gains forget [B H].

    A^-1 <- prior I + C (A^-1 - prior I) is A <- R A with R = (C I + prior (1 - C) A)^-1, where C = exp(f).
    """
    head = tl.program_id(0)
    d = tl.arange(0, BD)
    seen = tl.load(t + head // H)
    since = tl.load(f + head)
    if (seen > 0) & (seen % beat == 0):
        C = tl.exp(since)
        M = symmetric(matrix(A, head, d, D, d, D))
        aside = scratch + head.to(tl.int64) * (STEP * (BD + STEP))
        eye = (d[:, None] == d[None, :]) & (d[:, None] < D)
        R = inverse(prior * (1 - C) * M + tl.where(eye, C, 0.0), aside, D, BD, WALK, WARPS)
        M = symmetric(dot(R, M, WALK))
        tl.debug_barrier()
        store_matrix(A, M, head, d, D, d, D)
        since = tl.zeros([], tl.float32)
    tl.store(f + head, since + tl.load(forget + head).to(tl.float32))


@triton.jit
def outer_sum(
    G, a, k, spans, chunk_first, out, H, D,
    BD: tl.constexpr, BLOCK: tl.constexpr, FIXED: tl.constexpr,
    MAP: tl.constexpr, UNIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """out [spans, H, D, D] = -sym(G^T a) of each span, with G [chunks, H, 64, D]. FIXED: sym(G^T K), where G is dP."""
    span, head, token, count, sequence, position, _ = span_of(spans, H)
    LEFT: tl.constexpr = "left" if DOT == "bf16" else DOT
    d = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for begin in range(0, count, BLOCK):
        here, more = token + begin, count - begin
        if FIXED:
            X = normalized(features(k, here, more, head, H, d, D, BLOCK, MAP), UNIT)[0]
        else:
            X = -rows(a, here, more, head, H, d, D, BLOCK)
        row = slot(chunk_first, sequence, position + begin, head, H)
        total = dot(tl.trans(rows(G, row, more, 0, 1, d, D, BLOCK)), X, LEFT, total)
    store_matrix(out, symmetric(total), span * H + head, d, D, d, D)


@triton.jit
def direction_backward(
    u, strength, a, G, dM, dlog, du, dstrength, dforget, chunks, chunk_position, chunk_first, gradient_first, H, D,
    scale,
    BD: tl.constexpr, STRENGTH: tl.constexpr, FORGET: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """du without refresh, for one chunk a program. dM [*, H, D, D]: gradient of A^-1 after every span of SPAN tokens.

    Every token only adds u u^T to A^-1, so the gradient of A^-1 is the sum of -sym(g_t a_t^T) over later tokens, and
    dU = 2 U dM - triu(U a^T) G - triu(U G^T) a, over the rest of the span: attention to later tokens.
    With STRENGTH, A^-1 gains w u u^T, and dstrength [tokens, H] gets u . dM u. With FORGET, dforget [tokens, H] is dlog
    [*, H] of the token's span.
    a is exact in bfloat16. G [chunks, H, CHUNK, D] and dM are not, and are split into two bfloat16 numbers.
    """
    RIGHT: tl.constexpr = "right" if DOT == "bf16" else DOT
    chunk, head = tl.program_id(0) // H, tl.program_id(0) % H
    token, count = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
    sequence, position = tl.load(chunk_position + chunk * 2), tl.load(chunk_position + chunk * 2 + 1)
    d = tl.arange(0, BD)
    i = tl.arange(0, CHUNK)
    y, inverse = unit(rows(u, token, count, head, H, d, D, CHUNK))
    x = operand(y, DOT)
    at = (tl.load(gradient_first + sequence) + position // SPAN) * H + head
    left = (SPAN - position % SPAN) // CHUNK
    left = tl.minimum(left, tl.load(chunk_first + sequence + 1) - chunk)
    dU = dot(x, matrix(dM, at, d, D, d, D), RIGHT)  # half of dU; the factor 2 comes at the end
    for n in range(left):
        here, more = tl.load(chunks + (chunk + n) * 2), tl.load(chunks + (chunk + n) * 2 + 1)
        P = operand(rows(a, here, more, head, H, d, D, CHUNK), DOT)
        X = rows(G, ((chunk + n) * H + head) * CHUNK, more, 0, 1, d, D, CHUNK) * -0.5
        later = (n > 0) | (i[:, None] <= i[None, :])
        dU = dot(tl.where(later, dot(x, tl.trans(P), DOT), 0.0), X, RIGHT, dU)
        dU = dot(tl.where(later, dot(x, tl.trans(X), RIGHT), 0.0), P, DOT, dU)
    if FORGET:
        store_column(dforget, tl.zeros([CHUNK], tl.float32) + tl.load(dlog + at), token, count, head, H, CHUNK)
    if STRENGTH:
        store_column(dstrength, tl.sum(y * dU, 1), token, count, head, H, CHUNK)
        dU *= 2 * column(strength, token, count, head, H, CHUNK).to(tl.float32)[:, None]
    else:
        dU *= 2 * scale * scale
    store_rows(du, unit_backward(dU, y, inverse), token, count, head, H, d, D, CHUNK)
