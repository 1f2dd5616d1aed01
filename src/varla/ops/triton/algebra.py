"""What the kernels compute with tiles: products, feature map, normalisation, small factorisations, decays.

Tiles are float32 in registers. `DOT` says what the operands of a product are rounded to: "bf16"; "left" or "right"
(bf16, but that operand is split into two bfloat16 numbers, which keeps 16 bits); "bf16x3" (both are split); "tf32"; or
"tf32x3" (both are split, float32 accuracy). If a tile of tokens is transposed (`T`), sums over D run
over axis 0.
"""

import triton
import triton.language as tl

from varla.ops.triton.tiles import column, loaded


@triton.jit
def halves(x):
    """x as the sum of two bfloat16 numbers. The first is truncated, not rounded: that takes fast instructions."""
    high = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def dot(x, y, DOT: tl.constexpr, acc=None):
    """x @ y (+ acc) in float32, the operands rounded as DOT says."""
    if DOT == "bf16":
        return tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), acc)
    elif DOT == "left":
        high_x, low_x = halves(x)
        return tl.dot(high_x, y.to(tl.bfloat16), tl.dot(low_x, y.to(tl.bfloat16), acc))
    elif DOT == "right":
        high_y, low_y = halves(y)
        return tl.dot(x.to(tl.bfloat16), high_y, tl.dot(x.to(tl.bfloat16), low_y, acc))
    elif DOT == "bf16x3":
        high_x, low_x = halves(x)
        high_y, low_y = halves(y)
        return tl.dot(high_x, high_y, tl.dot(high_x, low_y, tl.dot(low_x, high_y, acc)))
    else:
        return tl.dot(x, y, acc, input_precision=DOT)


@triton.jit
def operand(x, DOT: tl.constexpr):
    """x in the type that `dot` will convert it to, if that is bfloat16: it then takes half the registers."""
    if DOT == "bf16":
        return x.to(tl.bfloat16)
    else:
        return x


@triton.jit
def feature(x, MAP: tl.constexpr):
    """The feature map "elu1" (ELU(x) + 1, which is exp(x) for x <= 0), "silu" or "identity". NaN stays NaN."""
    if MAP == "elu1":
        return tl.where(x > 0, x + 1, tl.exp(x))
    elif MAP == "silu":
        return x * sigmoid(x)
    else:
        return x


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1 + e)


@triton.jit
def feature_backward(grad, phi, MAP: tl.constexpr):
    """Gradient of x from that of phi = feature(x), for "elu1" and "identity": "silu" needs x (`features_backward`)."""
    tl.static_assert(MAP != "silu")
    if MAP == "elu1":
        return tl.where(phi < 1, grad * phi, grad)
    else:
        return grad


@triton.jit
def unit(x, T: tl.constexpr = False):
    """(tokens over their length, 1 / length with D reduced to 1). Zero stays zero; no length over- or underflows."""
    AXIS: tl.constexpr = 0 if T else 1
    largest = tl.max(tl.abs(x), AXIS, keep_dims=True)
    zero = largest < 1.1754943508222875e-38
    scale = 1 / tl.where(zero, 1.0, largest)
    scaled = x * scale
    square = tl.sum(scaled * scaled, AXIS, keep_dims=True)
    inverse = tl.where(zero, 0.0, tl.rsqrt(tl.where(zero, 1.0, square)))
    return scaled * inverse, scale * inverse


@triton.jit
def unit_backward(grad, y, inverse, T: tl.constexpr = False):
    """Gradient of x from that of y, where (y, inverse) = unit(x)."""
    AXIS: tl.constexpr = 0 if T else 1
    return (grad - y * tl.sum(y * grad, AXIS, keep_dims=True)) * inverse


@triton.jit
def featured(x, count, d, D, N: tl.constexpr, MAP: tl.constexpr, T: tl.constexpr = False):
    """Features of a loaded tile; zero where a token does not exist."""
    i = tl.arange(0, N)
    if T:
        inside = (i[None, :] < count) & (d[:, None] < D)
    else:
        inside = (i[:, None] < count) & (d[None, :] < D)
    return tl.where(inside, feature(x.to(tl.float32), MAP), 0.0)


@triton.jit
def features(ptr, token, count, head, H, d, D, N: tl.constexpr, MAP: tl.constexpr, T: tl.constexpr = False):
    """Features of a tile of tokens of ptr [tokens, H, D]; zero where a token does not exist."""
    return featured(loaded(ptr, token, count, head, H, d, D, N, T), count, d, D, N, MAP, T)


@triton.jit
def normalized(F, UNIT: tl.constexpr, T: tl.constexpr = False):
    """(K, 1 / |F|), with K = F / |F| for key features F. Without UNIT: (F, 1)."""
    if UNIT:
        return unit(F, T)
    else:
        return F, 1.0


@triton.jit
def cholesky_inverse(G, aside, WARPS: tl.constexpr):
    """The inverse of the Cholesky factor of G [16, 16], symmetric; NaN if G is not positive definite.

    It eliminates on [G I], held as [16, WARPS, 32]: every warp has a copy, with one column in each lane. A row is then
    one register, a column is a gather within the warp, and no step needs a barrier. G and the result change layout
    through memory (`aside`, 256 floats of this program): a reduction over the copies would take longer than the
    elimination.
    """
    at = tl.arange(0, 16)
    square = aside + at[:, None] * 16 + at[None, :]
    i = at[:, None, None]
    lane = tl.broadcast_to(tl.arange(0, 32)[None, None, :], [16, WARPS, 32])
    tl.debug_barrier()
    tl.store(square, G)
    tl.debug_barrier()
    # (17 lane) mod 16 equals lane mod 16, but the compiler does not see that it is contiguous. It therefore puts one
    # column in each lane instead of vectorising.
    X = tl.load(aside + i * 16 + (lane * 17) % 16, lane < 16, 0.0) + tl.where(lane == i + 16, 1.0, 0.0)
    for s in tl.static_range(16):
        below = tl.gather(X, tl.full([16, WARPS, 32], s, tl.int32), 2)
        scale = tl.rsqrt(tl.sum(tl.where(i == s, below, 0.0), 0))[None]
        done = tl.sum(tl.where(i == s, X, 0.0), 0)[None] * scale
        X = tl.where(i > s, X - (below * scale) * done, tl.where(i == s, done, X))
    first = tl.arange(0, WARPS)[None, :, None] == 0
    tl.debug_barrier()
    tl.store(aside + i * 16 + lane - 16, X, first & (lane >= 16))
    tl.debug_barrier()
    return tl.load(square)


@triton.jit
def lower_inverse(N, WARPS: tl.constexpr, DOT: tl.constexpr):
    """(I + N)^-1 for strictly lower triangular N [64, 64].

    D is the inverse of the four 16 x 16 diagonal blocks, by forward substitution on all four at once. Then
    (I + N)^-1 = (I + M)^-1 D with M = D (N without its diagonal blocks). M^4 = 0, so (I + M)^-1 = (I - M) (I + M^2).
    """
    LANES: tl.constexpr = 2 * WARPS
    i = tl.arange(0, 16)[:, None, None]
    blocks = tl.reshape(N, [4, 16, 4, 16])
    same = tl.arange(0, 4)[:, None, None, None] == tl.arange(0, 4)[None, None, :, None]
    own = tl.sum(tl.where(same, blocks, 0.0), 2)  # [4, 16, 16]
    X = tl.permute(own, [1, 0, 2])
    X = tl.reshape(tl.broadcast_to(X[:, :, None, :], [16, 4, LANES // 4, 16]), [16, LANES, 16])
    Y = tl.broadcast_to(tl.where(i == tl.arange(0, 16)[None, None, :], 1.0, 0.0), [16, LANES, 16])
    for s in tl.static_range(15):
        below = tl.gather(X, tl.full([16, LANES, 16], s, tl.int32), 2)
        Y = tl.where(i > s, Y - below * tl.sum(tl.where(i == s, Y, 0.0), 0)[None], Y)
    own = tl.permute(tl.max(tl.reshape(Y, [16, 4, LANES // 4, 16]), 2), [1, 0, 2])
    D = tl.reshape(tl.where(same, own[:, :, None, :], 0.0), [64, 64])
    rest = tl.reshape(tl.where(same, 0.0, blocks), [64, 64])
    eye = tl.where(tl.arange(0, 64)[:, None] == tl.arange(0, 64)[None, :], 1.0, 0.0)
    M = dot(D, rest, DOT)
    return dot(dot(eye - M, eye + dot(M, M, DOT), DOT), D, DOT)


@triton.jit
def decays(decay, token, count, head, H, N: tl.constexpr):
    """Running sums of log decays [tokens, H] from the tile's first token on, as two numbers (high, low) [N] each.

    The sum of a few strong decays is large, and a difference of two such sums would keep their rounding errors. So
    every log decay is split into a multiple of 1/256, whose sums are exact, and a small rest. Below -1000 a decay is 0.
    """
    x = column(decay, token, count, head, H, N).to(tl.float32)
    x = tl.where(x < -1000.0, -1000.0, x)
    high = tl.floor(x * 256) / 256
    return tl.cumsum(high, 0), tl.cumsum(x - high, 0)


@triton.jit
def last_of(x, N: tl.constexpr):
    """The last of N numbers."""
    return tl.sum(tl.where(tl.arange(0, N) == N - 1, x, 0.0), 0)


@triton.jit
def between(high, low, N: tl.constexpr):
    """The decay from token s to token t, exp(c_t - c_s) for s <= t and 0 for others: [N, N], from `decays`."""
    i = tl.arange(0, N)
    sums = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    return tl.exp(tl.where(i[:, None] >= i[None, :], sums, float("-inf")))
