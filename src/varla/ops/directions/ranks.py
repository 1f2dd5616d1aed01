"""`directions` of a sequence whose tokens are spread over ranks: A goes from rank to rank.

What a piece of the sequence does to A has a fixed size, whatever the piece's length, and is computed without knowing A:

    A^-1 <- A^-1 + J                     J is the sum of w u u^T
    A <- C + F (A^-1 + J)^-1 F^T         with the refresh
    Y <- C C_0 (Y + G) + R               forgetting at the beat; Y = A^-1 - lambda0 I, C the share before the piece
    Y <- C_0 Y + R                       forgetting with every token; Y = A^-1 - lambda0 C I

All ranks exchange these, and each applies those of the ranks before it to the A that the sequence began with. That is
done in float64: it is a few D x D matrices. A piece without a beat only adds G. docs/math.md, section 10.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops import dispatch
from varla.ops.algebra import eye_like, inverse, left_by_later, symmetric
from varla.ops.directions.settings import DirectionSettings
from varla.ops.dispatch import Mechanism
from varla.ops.features import unit
from varla.ops.split import Split
from varla.ops.state import State


def directions_over_ranks(
    mechanism: Mechanism[Any], inputs: Sequence[Any], sizes: Any, settings: Sequence[Any], split: Split,
    initial_state: State | None, **call: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """(a of this rank's tokens, state after them); see dispatch.Mechanism.ranks."""
    along: DirectionSettings = settings[0]
    k, u, *gates = inputs
    before = dispatch.begin_split(mechanism, initial_state, sizes, settings, inputs, split)
    held = before.tensors()
    if along.update_penalty:
        carried, (u, *gates) = _carried(before, (u, *gates), along, split)
        held |= {name: split.first_row(held[name], x.to(held[name].dtype)) for name, x in carried.items()}
    held["t"] = split.moved(before.t)
    before = before.of(held[name] for name in before.LAYOUT)
    return dispatch.run_on_rank(mechanism, (k, u, *gates), sizes, settings, before, split, **call)


def _carried(
    begun: Any, inputs: Sequence[Any], settings: DirectionSettings, split: Split
) -> tuple[dict[str, Tensor], Sequence[Any]]:
    """(A, and f if A forgets, where this rank's first sequence goes on; inputs), from the states of their beginnings.

    Nothing of A if that sequence begins here. Inputs: u, strength and, if A forgets, forget.
    """
    u, strength, forget = (*inputs, None)[:3]
    t = split.last_row(split.moved(begun.t))
    own_w, own_c = (None if x is None else split.last(x) for x in (strength, forget))
    piece = _piece(split.last(u), own_w, own_c, t, settings, begun.A.dtype, used=split.goes_on)
    found, inputs = split.gather([x.to(begun.A.dtype) for x in piece], inputs)
    if not split.before:
        return {}, inputs
    maps = [type(piece)(*(x.double() for x in found[rank])) for rank in split.before]
    return _applied(maps, begun.map(split.only_first), settings), inputs


class Added(NamedTuple):
    """What a piece adds to A^-1, J [rows, H, D, D]."""

    J: Tensor


class Refreshed(NamedTuple):
    """A <- C + F (A^-1 + J)^-1 F^T, all [rows, H, D, D]."""

    C: Tensor
    F: Tensor
    J: Tensor


class Forgotten(NamedTuple):
    """See the module. G, R [rows, H, D, D]; log_C, the logarithm of C_0, and f [rows, H]; beats [rows, H]: 1 or 0.

    f is the logarithm of the share of the prior that is left, counted from the last beat, or from the piece's start.
    """

    G: Tensor
    R: Tensor
    log_C: Tensor
    f: Tensor
    beats: Tensor


Piece = Added | Refreshed | Forgotten


def _piece(
    u: Tensor, strength: Tensor | None, forget: Tensor | None, t: Tensor, settings: DirectionSettings,
    dtype: torch.dtype, used: bool,
) -> Piece:  # fmt: skip
    """What raw u [rows, T, H, D] do to A, after t [rows] tokens of their sequences. Zeros if it is not `used`."""
    (rows, _, H, D), wide = u.shape, torch.float64
    matrix = torch.zeros(rows, H, D, D, dtype=dtype, device=u.device)
    if not used:
        number = matrix[..., 0, 0]
        if forget is not None:
            return Forgotten(matrix, matrix, number, number, number)
        return Added(matrix) if settings.refresh_beat is None else Refreshed(matrix, matrix, matrix)
    lengths = settings.lengths_of_u(None if strength is None else strength.to(wide), D)
    U = (unit(u.to(wide))[0] * lengths).transpose(1, 2)  # [rows, H, T, D]
    if forget is not None:
        return _forgotten(U, forget.to(wide)[..., 0].transpose(1, 2), t, settings)
    if settings.refresh_beat is None:
        return Added(U.mT @ U)
    return _refreshed(U, t, *settings.refresh_beat)


def _forgotten(U: Tensor, log_c: Tensor, t: Tensor, settings: DirectionSettings) -> Forgotten:
    """`_piece` from penalty directions U [rows, H, T, D] and log_c [rows, H, T]."""
    rows, H, T, D = U.shape
    seen = t[:, None] + torch.arange(T, device=t.device)  # tokens before each token, [rows, T]
    due = (seen > 0) & (seen % settings.beat == 0)
    stretch = due.cumsum(1)  # which stretch between beats a token is in
    most = T // settings.beat + 2
    place = stretch[:, None].expand(rows, H, T)
    sums = torch.zeros(rows, H, most, dtype=U.dtype, device=U.device).scatter_add(2, place, log_c)
    final = stretch[:, -1:]
    complete = torch.arange(most, device=t.device) < final  # stretches that a beat ends, [rows, most]
    f = sums.gather(2, final[:, None].expand(rows, H, 1))[..., 0]
    beats = (final > 0).to(U.dtype).expand(rows, H)
    if settings.forget_at == "token":
        share = left_by_later(log_c)[..., None]
        return Forgotten(U.new_zeros(rows, H, D, D), (share * U).mT @ U, log_c.sum(2), f, beats)
    shares = torch.where(complete[:, None], sums, 0).flip(2).cumsum(2).flip(2)  # of the stretches from here on
    share = shares.exp().gather(2, place)[..., None]
    head = (stretch == 0)[:, None, :, None]
    G = torch.where(head, U, 0).mT @ U
    R = (torch.where(head, 0, share) * U).mT @ U
    return Forgotten(G, R, shares[..., 0], f, beats)


def _refreshed(U: Tensor, t: Tensor, period: int, eta: float) -> Refreshed:
    """`_piece` with a refresh: the maps of stretches that end with one, composed two by two."""
    rows, H, T, D = U.shape
    late = t % period  # tokens since the last refresh
    count = (T + period - 1) // period + 1
    token = torch.arange(count * period, device=t.device) - late[:, None]  # [rows, count * period]
    inside = (token >= 0) & (token < T)
    index = token.clamp(0, T - 1)[:, None, :, None].expand(rows, H, -1, D)
    laid = torch.where(inside[:, None, :, None], U.gather(2, index), 0).view(rows, H, count, period, D)
    eye = eye_like(U, D).expand(rows, H, count, D, D)
    ends = late[:, None] + T >= (torch.arange(count, device=t.device) + 1) * period
    C = eta * _wide(ends[:, None]).to(U.dtype) * eye
    F, J = eye, laid.mT @ laid
    while C.shape[2] > 1:
        odd = [x[:, :, -1:] if C.shape[2] % 2 else x[:, :, :0] for x in (C, F, J)]
        even = [x[:, :, : C.shape[2] // 2 * 2] for x in (C, F, J)]
        joined = compose([x[:, :, 0::2] for x in even], [x[:, :, 1::2] for x in even])
        C, F, J = (torch.cat(parts, 2) for parts in zip(joined, odd, strict=True))
    return Refreshed(C[:, :, 0], F[:, :, 0], J[:, :, 0])


def compose(first: Sequence[Tensor], then: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(C, F, J) of two maps A -> C + F (A^-1 + J)^-1 F^T, one after the other; all [..., D, D]."""
    (C1, F1, J1), (C2, F2, J2) = first, then
    M = torch.linalg.inv(eye_like(C1, C1.shape[-1]) + C1 @ J2)
    F2M = F2 @ M
    return C2 + F2M @ C1 @ F2.mT, F2M @ F1, J1 + F1.mT @ J2 @ M @ F1


def _applied(maps: Sequence[Any], begun: Any, settings: DirectionSettings) -> dict[str, Tensor]:
    """A, and f if A forgets, after the pieces, from the state that their sequence began with."""
    A = symmetric(begun.A.double())
    if isinstance(maps[0], Refreshed):
        for C, F, J in maps:
            A = symmetric(C + F @ torch.linalg.solve(eye_like(A, A.shape[-1]) + A @ J, A) @ F.mT)
        return {"A": A}
    if isinstance(maps[0], Added):
        return {"A": inverse(inverse(A) + sum(piece.J for piece in maps))}
    f, prior = begun.f.double(), settings.lambda0 * eye_like(A, A.shape[-1])
    by_token = settings.forget_at == "token"
    Y = inverse(A) - (_wide(f.exp()) * prior if by_token else prior)
    for piece in maps:
        beats = piece.beats > 0
        if by_token:
            Y = _wide(piece.log_C.exp()) * Y + piece.R
        else:
            Y = Y + piece.G
            Y = torch.where(_wide(beats), _wide((f + piece.log_C).exp()) * Y + piece.R, Y)
        f = torch.where(beats, piece.f, f + piece.f)
    return {"A": inverse(Y + (_wide(f.exp()) * prior if by_token else prior)), "f": f}


def _wide(x: Tensor) -> Tensor:
    """[...] to [..., 1, 1]."""
    return x[..., None, None]
