"""`memory` of a sequence whose tokens are spread over ranks: S and z go from rank to rank.

What a piece of the sequence does is linear in S, and has a fixed size, whatever the piece's length:

    S <- S F + G         F is the product of d (I - beta k a^T) over its tokens, G what it writes into S = 0
    S <- p S + G         without the error: p is the product of d
    z <- p z + g

The rows of S do not depend on each other. So F comes with G from one call of the operator: D more rows, which begin as
the identity and whose values are 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from varla.ops import dispatch
from varla.ops.algebra import eye_like, left_by_later
from varla.ops.dispatch import Mechanism
from varla.ops.features import feature
from varla.ops.memory.settings import MemorySettings
from varla.ops.split import Split
from varla.ops.state import DeltaRuleState, State

MOST_ROWS = 256  # of S in one call: the kernels take no more values


def memory_over_ranks(
    mechanism: Mechanism[Any], inputs: Sequence[Any], sizes: Any, settings: Sequence[Any], split: Split,
    initial_state: State | None, **call: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """(o of this rank's tokens, state after them); see dispatch.Mechanism.ranks."""
    q, *others = inputs
    if others[-1] is not None and others[-1].shape[-1] > 1:
        refuse_channels()
    before = dispatch.begin_split(mechanism, initial_state, sizes, settings, inputs, split)
    held = before.tensors()
    own = [None if x is None else split.last(x) for x in others]
    piece = _piece(mechanism, own, before.S, held.get("z"), settings[0], used=split.goes_on, **call)
    found, others = split.gather([x.to(before.S.dtype) for x in piece], others)
    carried = {name: split.only_first(x) for name, x in held.items() if name != "t"}
    for rank in split.before:
        p, G, F, *g = found[rank]
        S = carried["S"]
        carried["S"] = (S @ F if settings[0].error else p[..., None, None] * S) + G
        if g:
            z = carried["z"]
            carried["z"] = p[..., None].to(z.dtype) * z + g[0].to(z.dtype)
    held |= {name: split.first_row(held[name], x) for name, x in carried.items()}
    held["t"] = split.moved(before.t)
    before = before.of(held[name] for name in before.LAYOUT)
    return dispatch.run_on_rank(mechanism, (q, *others), sizes, settings, before, split, **call)


def refuse_channels() -> NoReturn:
    """Raise a ValueError: there is a decay for every value channel."""
    raise ValueError(
        "a decay for every value channel cannot be split over ranks: each channel would pass on a D x D matrix of its "
        "own. Use one decay a head"
    )


def _piece(
    mechanism: Mechanism[Any], tokens: Sequence[Any], S: Tensor, z: Tensor | None, settings: MemorySettings,
    used: bool, **call: Any,
) -> list[Tensor]:  # fmt: skip
    """[p [rows, H], G [rows, H, Dv, D], F [rows, H, D, D], and g [rows, H, D] with z]; zeros if it is not `used`.

    tokens: k, v, a, beta and decay of one sequence. Without the error, F is empty.
    """
    k, v, a, beta, decay = tokens
    (rows, T, H, D), Dv, dtype = k.shape, v.shape[-1], S.dtype
    wide = D if settings.error else 0
    if not used:
        sums = [] if z is None else [S.new_zeros(rows, H, D)]
        return [S.new_zeros(rows, H), S.new_zeros(rows, H, Dv, D), S.new_zeros(rows, H, wide, D), *sums]
    log_d = torch.zeros(rows, H, T, dtype=torch.float64, device=k.device)
    if decay is not None:
        log_d = log_d + decay[..., 0].transpose(1, 2).double()
    p = log_d.sum(2).exp()
    sums = []
    if z is not None:
        sums = [(left_by_later(log_d)[..., None] * feature(k.to(z.dtype), settings.feature_map).transpose(1, 2)).sum(2)]
    zero = torch.zeros(rows, H, Dv, D, dtype=dtype, device=k.device)
    values, begins = [v], [zero]
    if settings.error:
        values, begins = [v, v.new_zeros(rows, T, H, D)], [zero, eye_like(zero, D).expand(rows, H, D, D)]
        if Dv + D <= MOST_ROWS:
            values, begins = [torch.cat(values, -1)], [torch.cat(begins, 2)]
    plain = replace(mechanism, state=DeltaRuleState, ranks=None)
    ends = []
    for v, begin in zip(values, begins, strict=True):
        state = DeltaRuleState(begin, torch.zeros(rows, dtype=torch.int64, device=k.device))
        _, state = dispatch.run(
            plain, (k, k, v, a, beta, decay), {"B": rows, "T": T, "H": H, "D": D, "Dv": v.shape[-1]},
            (replace(settings, normalizer=False),), True, initial_state=state, cu_seqlens=None, **call,
        )  # fmt: skip
        ends.append(state.S)
    G, F = torch.split(torch.cat(ends, 2), [Dv, wide], 2)
    return [p, G, F, *sums]
