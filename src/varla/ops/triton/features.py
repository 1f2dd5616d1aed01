"""`scaled_features` of varla/ops/features.py as one kernel forward and one backward: queries and keys for `memory`.

A row is one head of one token, D elements. A program reads several rows once and writes y, and beta y if there is a
beta. Only the inputs are saved; the backward recomputes features and lengths.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops import features
from varla.ops.custom_op import empty, kernel_operator, present
from varla.ops.triton.algebra import feature_backward, featured, normalized, sigmoid, unit_backward
from varla.ops.triton.plan import parts
from varla.ops.triton.tiles import column, loaded, rows, store_column, store_rows

ELEMENTS, WARPS = 1024, 4  # of a program: with eight elements a thread, several programs share a multiprocessor


@triton.jit
def rows_of(total, N: tl.constexpr):
    """(the program's first row, number of rows from there to the end)."""
    row = tl.program_id(0).to(tl.int64) * N
    return row, total - row


@triton.jit(do_not_specialize=["total"])
def features_forward(
    x, beta, y, a, total, scale, D: tl.constexpr, BD: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    UNIT: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    """y [total, D] and, if BETA, a = beta y [total, D], from x [total, D] and beta [total]."""
    d = tl.arange(0, BD)
    row, count = rows_of(total, N)
    F = featured(loaded(x, row, count, 0, 1, d, D, N), count, d, D, N, MAP)
    K = normalized(F, UNIT)[0] * scale
    store_rows(y, K, row, count, 0, 1, d, D, N)
    if BETA:
        strength = column(beta, row, count, 0, 1, N).to(tl.float32)
        store_rows(a, strength[:, None] * K, row, count, 0, 1, d, D, N)


@triton.jit(do_not_specialize=["total"])
def features_backward(
    x, beta, dy, da, dx, dbeta, total, scale, D: tl.constexpr, BD: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    UNIT: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    """dx [total, D] and, if BETA, dbeta [total]."""
    d = tl.arange(0, BD)
    row, count = rows_of(total, N)
    X = loaded(x, row, count, 0, 1, d, D, N)
    g = rows(dy, row, count, 0, 1, d, D, N)
    if BETA:  # loaded here, before the first use of X stalls
        strength = column(beta, row, count, 0, 1, N).to(tl.float32)
        e = rows(da, row, count, 0, 1, d, D, N)
    F = featured(X, count, d, D, N, MAP)
    K, inverse = normalized(F, UNIT)
    if BETA:
        store_column(dbeta, (tl.sum(K * e, 1) * scale).to(dbeta.dtype.element_ty), row, count, 0, 1, N)
        g += strength[:, None] * e
    g *= scale
    if UNIT:
        g = unit_backward(g, K, inverse)
    if MAP == "silu":
        slope = sigmoid(X.to(tl.float32))
        store_rows(dx, g * (slope + F * (1 - slope)), row, count, 0, 1, d, D, N)
    else:
        store_rows(dx, feature_backward(g, F, MAP), row, count, 0, 1, d, D, N)


def _constants(x: Tensor, beta: Tensor | None, feature_map: str, normalize: bool) -> dict[str, int]:
    D = x.shape[-1]
    BD = triton.next_power_of_2(D)
    sizes = {"D": D, "BD": BD, "N": max(ELEMENTS // BD, 1), "num_warps": WARPS}
    return {**sizes, "MAP": feature_map, "UNIT": normalize, "BETA": beta is not None}


def _features(
    x: Tensor, beta: Tensor | None, feature_map: str, normalize: bool, scale: float, dtype: torch.dtype
) -> list[Tensor]:
    """[y], or [y, beta y] with beta [B, T, H, 1], in `dtype`, from x [B, T, H, D]."""
    outputs = _features_fake(x, beta, feature_map, normalize, scale, dtype)
    if x.numel() == 0:
        return outputs
    total, constants = x.numel() // x.shape[-1], _constants(x, beta, feature_map, normalize)
    x = x.contiguous()
    with torch.cuda.device_of(x):
        features_forward[(parts(total, constants["N"]),)](
            x, x if beta is None else beta.contiguous(), outputs[0], outputs[-1], total, scale, **constants
        )
    return outputs


def _features_fake(
    x: Tensor, beta: Tensor | None, feature_map: str, normalize: bool, scale: float, dtype: torch.dtype
) -> list[Tensor]:
    return [empty(x, dtype) for _ in range(1 if beta is None else 2)]


def _features_backward(
    x: Tensor,
    beta: Tensor | None,
    feature_map: str,
    normalize: bool,
    scale: float,
    dtype: torch.dtype,
    grads: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of x and, if there is one, of beta, from those of y and beta y."""
    outputs = [empty(each) for each in present((x, beta))]
    if x.numel() == 0:
        return outputs
    total, constants = x.numel() // x.shape[-1], _constants(x, beta, feature_map, normalize)
    x, grads = x.contiguous(), [grad.contiguous() for grad in grads]
    # Without beta, other tensors take the place of beta and its gradients; the kernel does not touch them.
    with torch.cuda.device_of(x):
        features_backward[(parts(total, constants["N"]),)](
            x, x if beta is None else beta.contiguous(), grads[0], grads[-1], outputs[0], outputs[-1], total, scale,
            **constants,
        )  # fmt: skip
    return outputs


features_triton = kernel_operator(
    "features_triton", _features, _features_fake, _features_backward, features.scaled_features, 2
)


def scaled_features(
    x: Tensor, beta: Tensor | None, feature_map: str, normalize: bool, scale: float, dtype: torch.dtype
) -> list[Tensor]:
    """The operator; x itself if the arguments change nothing."""
    if feature_map == "identity" and not normalize and scale == 1 and beta is None and dtype == x.dtype:
        return [x]
    return features_triton(x, beta, feature_map, normalize, scale, dtype)
