"""Linear attention and the delta rules token by token, forward and backward: s <- g s + b e k, o = s . q.

s is a row of S. e is v - s . k, or v for linear attention; FIRST: the s in it is already decayed. g is the gate of the
row and b the write strength of the head; some mechanisms have none. Rows share only q, k and b, so a gate for each row
costs no more than one for each head. (In chunks, a gate for each row needs Dv heads.) A program holds BV rows of one
head in registers and goes through all tokens of a sequence.

The forward keeps the state every EVERY tokens. The backward goes from the last kept state to the first. From each it
recomputes the states of the next EVERY tokens into a buffer, and reads them in reverse. (Inverting the update instead
would divide by the gate.) Each program writes its share of the gradients of q, k and b; PyTorch sums the shares.

Each token waits for the one before. For short sequences in a large batch this is faster than the chunk form in
PyTorch. For one long sequence it leaves most of a GPU idle.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from varla.ops.custom_op import Arguments, StateOperator, empty
from varla.ops.packing import token_bounds
from varla.ops.triton.plan import parts
from varla.ops.triton.tiles import matrix, rows, store_matrix, store_rows

EVERY = 16  # tokens between kept states
ROWS = 32  # most rows of S in a program


@triton.jit
def written(S, k, v, beta, token, head, H, r, DV, d, D, ERROR: tl.constexpr, BETA: tl.constexpr):
    """(e [BV, 1], b, k [1, BD]) of a token; b is 1 without write strengths."""
    K = rows(k, token, 1, head, H, d, D, 1)
    e = rows(v, token, 1, head, H, r, DV, 1, True)
    if ERROR:
        e -= tl.sum(S * K, 1, keep_dims=True)
    b = 1.0
    if BETA:
        b = tl.load(beta + token * H + head)
    return e, b, K


@triton.jit
def decayed(S, gate, token, head, H, r, DV, GATE: tl.constexpr):
    """g S."""
    if GATE:
        return rows(gate, token, 1, head, H, r, DV, 1, True) * S
    else:
        return S


@triton.jit
def recurrent_forward(
    q, k, v, gate, beta, start, bounds, o, final, kept, H, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, EVERY: tl.constexpr, GATE: tl.constexpr, BETA: tl.constexpr, ERROR: tl.constexpr,
    FIRST: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """BV rows of one head of one sequence. `bounds` [sequences + 1]: offsets of sequences in q, k [tokens, H, D]."""
    index = tl.program_id(0)
    sequence, head = index // H, index % H
    d, r = tl.arange(0, BD), tl.program_id(1) * BV + tl.arange(0, BV)
    begin, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    S = matrix(start, index, r, DV, d, D)
    for i in range(0, end - begin):
        token = begin + i
        if KEEP:
            if i % EVERY == 0:
                store_matrix(kept, S, (begin // EVERY + sequence + i // EVERY) * H + head, r, DV, d, D)
        S = decayed(S, gate, token, head, H, r, DV, GATE and FIRST)
        e, b, K = written(S, k, v, beta, token, head, H, r, DV, d, D, ERROR, BETA)
        S = decayed(S, gate, token, head, H, r, DV, GATE and not FIRST) + (e * b) * K
        Q = rows(q, token, 1, head, H, d, D, 1)
        store_rows(o, tl.sum(S * Q, 1, keep_dims=True), token, 1, head, H, r, DV, 1, True)
    store_matrix(final, S, index, r, DV, d, D)


@triton.jit
def recurrent_backward(
    q, k, v, gate, beta, bounds, kept, between, do, dfinal, dq, dk, dv, dgate, dbeta, dstart, H, tokens,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, EVERY: tl.constexpr, GATE: tl.constexpr,
    BETA: tl.constexpr, ERROR: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """The backward. `between` [programs, EVERY, BV, BD] holds the states before each of EVERY tokens, a stretch.

    dq, dk [blocks of rows, tokens, H, D] and dbeta [blocks, tokens, H] must be summed over the blocks.
    """
    index, block = tl.program_id(0), tl.program_id(1)
    sequence, head = index // H, index % H
    a = tl.arange(0, BV)
    d, r = tl.arange(0, BD), block * BV + a
    begin, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    mine = (index * tl.num_programs(1) + block) * EVERY
    share = block * tokens
    dS = matrix(dfinal, index, r, DV, d, D)
    stretches = (end - begin + EVERY - 1) // EVERY
    for back in range(0, stretches):
        stretch = stretches - 1 - back
        first = begin + stretch * EVERY
        count = tl.minimum(end - first, EVERY)
        S = matrix(kept, (begin // EVERY + sequence + stretch) * H + head, r, DV, d, D)
        for i in range(0, count):
            store_matrix(between, S, mine + i, a, BV, d, BD)
            S = decayed(S, gate, first + i, head, H, r, DV, GATE and FIRST)
            e, b, K = written(S, k, v, beta, first + i, head, H, r, DV, d, D, ERROR, BETA)
            S = decayed(S, gate, first + i, head, H, r, DV, GATE and not FIRST) + (e * b) * K
        tl.debug_barrier()
        for j in range(0, count):
            i = count - 1 - j
            token = first + i
            dO = rows(do, token, 1, head, H, r, DV, 1, True)
            dS += dO * rows(q, token, 1, head, H, d, D, 1)
            store_rows(dq, tl.sum(dO * S, 0, keep_dims=True), share + token, 1, head, H, d, D, 1)
            S = matrix(between, mine + i, a, BV, d, BD)
            seen = decayed(S, gate, token, head, H, r, DV, GATE and FIRST)
            e, b, K = written(seen, k, v, beta, token, head, H, r, DV, d, D, ERROR, BETA)
            along = tl.sum(dS * K, 1, keep_dims=True)
            de = along * b
            if BETA:
                tl.store(dbeta + (share + token) * H + head, tl.sum(tl.where(r[:, None] < DV, e * along, 0.0)))
            dK = (e * b) * dS
            if ERROR:
                dK -= de * seen
            store_rows(dk, tl.sum(dK, 0, keep_dims=True), share + token, 1, head, H, d, D, 1)
            store_rows(dv, de, token, 1, head, H, r, DV, 1, True)
            if ERROR and FIRST:
                dS -= de * K
            if GATE:
                store_rows(dgate, tl.sum(dS * S, 1, keep_dims=True), token, 1, head, H, r, DV, 1, True)
            dS = decayed(dS, gate, token, head, H, r, DV, GATE)
            if ERROR and not FIRST:
                dS -= de * K
        tl.debug_barrier()
    store_matrix(dstart, dS, index, r, DV, d, D)


def _sizes(D: int, DV: int) -> dict[str, int]:
    BD, BV = triton.next_power_of_2(D), min(triton.next_power_of_2(DV), ROWS)
    warps = 1 if BD * BV <= 1024 else BD * BV // 512  # one warp needs no exchange, but would spill beyond 1024 elements
    return {"D": D, "DV": DV, "BD": BD, "BV": BV, "EVERY": EVERY, "num_warps": warps}


def _flat(x: Tensor) -> Tensor:
    """[B, T, H, *] as [tokens, H, *]."""
    return x.flatten(0, 1).contiguous()


def slots_needed(tokens: int, sequences: int) -> int:
    """Number of kept states. Those of a sequence begin at slot (tokens before it) // EVERY + (sequences before it)."""
    return tokens // EVERY + sequences


class RecurrentKernels(StateOperator):
    """The recurrence as one PyTorch operator. Its settings: whether errors are written, and whether decays come first.

    Inputs q, k [B, T, H, D], v, gate [B, T, H, Dv], beta [B, T, H]; state S [rows, H, Dv, D]. All are float32, except v
    and the outputs, which have one dtype.
    """

    def __init__(self, name: str) -> None:
        """Register the operator and its backward."""
        super().__init__(name, "triton", "q k v gate? beta?", "S", 2, (bool, bool))

    def run(self, *arguments: Any) -> list[Tensor]:
        """See StateOperator."""
        call, (S,), keep = self.split(arguments)
        q, _, v, *_ = call.inputs
        o, final = empty(v), empty(S)
        kept = self.buffers(call, (S,)) if keep else []
        if q.numel() == 0:
            return [o, final.copy_(S), *kept]
        sizes = _sizes(S.shape[3], S.shape[2])
        with torch.cuda.device_of(S):
            recurrent_forward[S.shape[0] * S.shape[1], parts(S.shape[2], sizes["BV"])](
                *self._tokens(call), S.contiguous(), token_bounds(q, call.cu_seqlens), o, final,
                kept[0] if keep else final, S.shape[1], **self._switches(call), KEEP=keep, **sizes,
            )  # fmt: skip
        return [o, final, *kept]

    def run_backward(
        self, call: Arguments, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See StateOperator."""
        q, _, v, gate, beta = call.inputs
        (dS,) = dfinal
        if q.numel() == 0:
            return [None if x is None else torch.zeros_like(x) for x in call.inputs], [dS.clone()]
        N, H, DV, D = dS.shape
        sizes = _sizes(D, DV)
        blocks = parts(DV, sizes["BV"])
        dq, dk = (q.new_empty(blocks, *q.shape) for _ in range(2))
        dv, dstart = empty(v), empty(dS)
        dgate = q.new_empty(v.shape if gate is not None else (0,))
        dbeta = q.new_empty((blocks, *q.shape[:3]) if beta is not None else (0,))
        between = q.new_empty(N * H * blocks, EVERY, sizes["BV"], sizes["BD"])
        with torch.cuda.device_of(q):
            recurrent_backward[N * H, blocks](
                *self._tokens(call), token_bounds(q, call.cu_seqlens), kept[0], between, _flat(do), dS.contiguous(),
                dq, dk, dv, dgate, dbeta, dstart, H, q.shape[0] * q.shape[1], **self._switches(call), **sizes,
            )  # fmt: skip
        optional = (None if gate is None else dgate, None if beta is None else dbeta.sum(0))
        return (dq.sum(0), dk.sum(0), dv, *optional), (dstart,)

    def buffers(self, call: Arguments, state: Sequence[Any]) -> list[Tensor]:
        """The kept states."""
        B, T = call.inputs[0].shape[:2]
        return [S.new_empty(slots_needed(B * T, S.shape[0]), *S.shape[1:]) for S in state]

    def _tokens(self, call: Arguments) -> list[Tensor]:
        """The inputs as [tokens, H, *]. q takes the place of a missing gate or beta, and no kernel reads it."""
        q = _flat(call.inputs[0])
        return [q, *(q if x is None else _flat(x) for x in call.inputs[1:])]

    def _switches(self, call: Arguments) -> dict[str, bool]:
        _, _, _, gate, beta = call.inputs
        error, first = call.settings
        return {"GATE": gate is not None, "BETA": beta is not None, "ERROR": error, "FIRST": first}


recurrent_triton = RecurrentKernels("recurrent_triton").forward
