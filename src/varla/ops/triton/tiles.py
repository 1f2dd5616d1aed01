"""Loads and stores of the kernels. Tiles are float32 in registers; what kernels compute with them is in algebra.py.

A tile of tokens is [N, D]. With `T` (transposed) it is [D, N]. The loads take `token`, the first token of the tile, and
`count`, the number of tokens from there to the end.
"""

import triton
import triton.language as tl


@triton.jit
def tile(token, count, head, H, d, D, N: tl.constexpr, T: tl.constexpr):
    """(offsets in [tokens, H, D] of tokens [token, token + N) of one head, which of them exist)."""
    i = tl.arange(0, N)
    if T:
        where, inside = i[None, :] * H * D + d[:, None], (i[None, :] < count) & (d[:, None] < D)
    else:
        where, inside = i[:, None] * H * D + d[None, :], (i[:, None] < count) & (d[None, :] < D)
    return (token.to(tl.int64) * H + head) * D + where, inside


@triton.jit
def loaded(ptr, token, count, head, H, d, D, N: tl.constexpr, T: tl.constexpr = False):
    """A tile of tokens of ptr [tokens, H, D], in its own dtype; zero where a token does not exist."""
    where, inside = tile(token, count, head, H, d, D, N, T)
    return tl.load(ptr + where, inside, 0.0)


@triton.jit
def rows(ptr, token, count, head, H, d, D, N: tl.constexpr, T: tl.constexpr = False):
    """`loaded`, converted to float32."""
    return loaded(ptr, token, count, head, H, d, D, N, T).to(tl.float32)


@triton.jit
def store_rows(ptr, x, token, count, head, H, d, D, N: tl.constexpr, T: tl.constexpr = False):
    """The reverse of `rows`."""
    where, inside = tile(token, count, head, H, d, D, N, T)
    tl.store(ptr + where, x.to(ptr.dtype.element_ty), inside)


@triton.jit
def column(ptr, token, count, head, H, N: tl.constexpr):
    """One number for each token, from ptr [tokens, H]: [N], zero where a token does not exist."""
    i = tl.arange(0, N)
    return tl.load(ptr + token.to(tl.int64) * H + head + i * H, i < count, 0.0)


@triton.jit
def store_column(ptr, x, token, count, head, H, N: tl.constexpr):
    """The reverse of `column`."""
    i = tl.arange(0, N)
    tl.store(ptr + token.to(tl.int64) * H + head + i * H, x, i < count)


@triton.jit
def matrix(ptr, index, r, R, c, C):
    """Rows r and columns c of matrix `index` of ptr [*, R, C], as float32; zero outside the matrix."""
    inside = (r[:, None] < R) & (c[None, :] < C)
    return tl.load(ptr + index.to(tl.int64) * R * C + r[:, None] * C + c[None, :], inside, 0.0).to(tl.float32)


@triton.jit
def store_matrix(ptr, x, index, r, R, c, C):
    """The reverse of `matrix`."""
    inside = (r[:, None] < R) & (c[None, :] < C)
    where = ptr + index.to(tl.int64) * R * C + r[:, None] * C + c[None, :]
    tl.store(where, x.to(ptr.dtype.element_ty), inside)


@triton.jit
def running_sum(x, initial, total, first, H, SIZE, REVERSE: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr):
    """Replace each entry of x [*, H, SIZE] by `initial` plus the sum of the earlier entries of its sequence.

    REVERSE sums the later entries instead. Entry n belongs to sequence s if first[s] <= n < first[s + 1]. `initial`
    and `total` are [sequences, H, SIZE]; `total` gets initial plus the sum of all entries.
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
