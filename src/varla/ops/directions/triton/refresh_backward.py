"""Kernels of the backward of `directions` with refresh: the gradient of A is a scan (docs/math.md, section 5).

Without refresh, the gradient of A^-1 is a sum: inverse.py.
"""

import triton
import triton.language as tl

from varla.ops.directions.triton.walk import STEP, first_refresh, lengths, refreshed, span_of, symmetric, updated
from varla.ops.triton.algebra import dot, features, normalized, unit, unit_backward
from varla.ops.triton.tiles import matrix, rows, store_column, store_matrix, store_rows


@triton.jit
def gradient_scan(Zs, Ys, PP, PK, final, initial, sequences, H, D, BD: tl.constexpr, DOT: tl.constexpr):
    """With refresh: the gradient of A, from the last step of a sequence to the first. Z Lam is stored over PK.

    Lam is the gradient of A after a step, Lam <- Pi^T Lam Pi + sym(Phi(dP)^T Phi(K)) with Pi = I - Z^T Y (docs/math.md,
    section 5). `final` and `initial` [sequences, H, D, D]: Lam after and before each sequence. All loads of a step come
    before its products, whose operands pass through shared memory behind a barrier. So all threads have read PK before
    the store.
    """
    LEFT: tl.constexpr = "left" if DOT == "bf16" else DOT
    sequence, head, token, count, _, _, _ = span_of(sequences, H)
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
        if BD == 16:  # one warp may hold such a tile, and pass it on without a barrier
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
    k, u, strength, dP, V, Zs, Js, X, rest, chunks, chunk_position, t,
    H, D, scale, period, eta,
    BD: tl.constexpr, STRENGTH: tl.constexpr, STEPS: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """With refresh: the gradient from V = Z Lam through Z and the factorisation to W. Steps are independent.

    With W = U A + eta r U, docs/math.md (section 5, local part) becomes dU = X A + rest, where X = dW - B' U and
    rest = eta (r dW - B' r U). X and rest [tokens, H, D]; A is the one at the beginning of the step (`direction_walk`).
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
        length = lengths(strength, scale, here, more, head, H, STEP, STRENGTH)
        U = unit(rows(u, here, more, head, H, d, D, STEP))[0] * length[:, None]
        P = rows(dP, (chunk * H + head) * 64 + n * STEP, more, 0, 1, d, D, STEP)
        K = normalized(features(k, here, more, head, H, d, D, STEP, MAP), UNIT)[0]
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
    u, strength, X, rest, Zs, du, dstrength, kept, t, spans,
    H, D, scale, period, eta,
    BD: tl.constexpr, STRENGTH: tl.constexpr, DOT: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """With refresh: du from dU = X A + rest. A is updated with the Z of `backward_walk`. du and X may share memory.

    With STRENGTH also dstrength [tokens, H]: the gradient of |u|, divided by 2 |u|.
    """
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
        length = lengths(strength, scale, here, more, head, H, STEP, STRENGTH)
        if STRENGTH:
            store_column(dstrength, tl.sum(y * dU, 0) / (2 * length), here, more, head, H, STEP)
        dU *= length[None, :]
        store_rows(du, unit_backward(dU, y, inverse, True), here, more, head, H, d, D, STEP, True)
        total = refreshed(position + begin, more, left, period, eta)[2]
        A = updated(A, rows(Zs, here, more, head, H, d, D, STEP, True), total, eye, True, WALK)
