"""The paper's own kernel (its section 3.4): all T tokens in one launch, one after another, the state in registers.

Here for the paper's comparison only: benchmarks call it, `varla.vla` never does. It saves the launches of a loop over
tokens, but no matrix product comes of it: every token waits for the one before. The chunk-wise kernels beside it do the
same work as products, and have a backward, which this has not.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.backends import cannot_launch
from varla.ops.checks import check_inputs, check_untracked
from varla.ops.fused.triton.decode import constants, denominator, write_direction
from varla.ops.state import VLAState, check_state
from varla.ops.triton.algebra import features, normalized, unit
from varla.ops.triton.tiles import loaded, matrix, rows, store_matrix, store_rows
from varla.ops.vla import VLASettings


@triton.jit
def penalty_step(A, u, on_beat, eta, BD: tl.constexpr, REFRESH: tl.constexpr):
    """Lines 8 to 15 of Algorithm 1: A [BD, BD] after a token with penalty direction u [1, BD], normalised.

    A is symmetric: A u sums over its columns, which takes fewer exchanges between threads than over its rows. The
    update is symmetric to the last bit.
    """
    w = tl.sum(A * tl.trans(u), 0, keep_dims=True)
    A -= (tl.trans(w) * w) * (1 / (1 + tl.sum(u * w, 1, keep_dims=True)))
    if REFRESH:
        if on_beat:
            d = tl.arange(0, BD)
            A += tl.where(d[:, None] == d[None, :], eta, 0.0)
    return A


@triton.jit
def walk_tokens(
    q, k, v, u, state_S, state_A, state_z, state_t, o, final_S, final_A, final_z, H, T, scale, period, eta, eps,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, MAP: tl.constexpr, UNIT: tl.constexpr,
    NORMALIZE: tl.constexpr, UPDATE: tl.constexpr, REFRESH: tl.constexpr, GAIN: tl.constexpr,
):  # fmt: skip
    """`reference.vla_reference` of one head and BV rows of S; every such program walks A and z for itself."""
    index = tl.program_id(0)
    row, head = index // H, index % H
    d, r = tl.arange(0, BD), tl.program_id(1) * BV + tl.arange(0, BV)
    A = matrix(state_A, index, d, D, d, D)
    S = matrix(state_S, index, r, DV, d, D)
    z = loaded(state_z, index, 1, 0, 1, d, D, 1)  # float64
    t = tl.load(state_t + row)
    for i in range(0, T):
        token = row.to(tl.int64) * T + i
        t += 1
        F = features(k, token, 1, head, H, d, D, 1, MAP)
        Q = features(q, token, 1, head, H, d, D, 1, MAP)
        K, _ = normalized(F, UNIT)
        if UPDATE:
            U, _ = unit(rows(u, token, 1, head, H, d, D, 1))
            A = penalty_step(A, U * scale, t % period == 0, eta, BD, REFRESH)
        alpha = write_direction(tl.sum(A * tl.trans(K), 0, keep_dims=True), K, GAIN)
        e = rows(v, token, 1, head, H, r, DV, 1, True) - tl.sum(S * K, 1, keep_dims=True)
        S += e * alpha
        z += F
        read = tl.sum(S * Q, 1, keep_dims=True) / denominator(z.to(tl.float32), Q, eps, NORMALIZE)
        store_rows(o, read, token, 1, head, H, r, DV, 1, True)
    store_matrix(final_S, S, index, r, DV, d, D)
    if tl.program_id(1) == 0:
        store_matrix(final_A, A, index, d, D, d, D)
        store_rows(final_z, z, index, 1, 0, 1, d, D, 1)


def vla_sequential(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, state: VLAState, settings: VLASettings
) -> tuple[Tensor, VLAState]:
    """q, k, u [B, T, H, D], v [B, T, H, Dv]; returns (o [B, T, H, Dv], final state). Forward only.

    `state` is not changed. A is taken to be symmetric, as it is in every state that this package makes.
    """
    named = {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "u": (u, "B T H D")}
    (q, k, v, u), sizes = check_inputs(named)
    reason = cannot_launch(q, sizes, "backend='chunk'")
    if reason is not None:
        raise RuntimeError(f"the sequential kernel cannot run here: {reason}")
    check_state("state", state, VLAState, sizes, q.device, q.dtype)
    tensors = {"q": q, "k": k, "v": v, "u": u, **{f"state.{name}": x for name, x in state.tensors().items()}}
    check_untracked("the sequential kernel has no backward", tensors)
    B, T, H, D = q.shape
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    final = VLAState.of(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state.tensors().values())
    final.t.copy_(state.t + T)
    if B == 0:
        return o, final
    scalars, named = constants(*settings.halves, D, v.shape[-1])
    with torch.cuda.device_of(q):
        walk_tokens[B * H, triton.cdiv(v.shape[-1], named["BV"])](
            *(x.contiguous() for x in (q, k, v, u, *state.tensors().values())),
            o, final.S, final.A, final.z, H, T, *scalars, **named,
        )  # fmt: skip
    return o, final
