"""Forgetting at the beat by kernels that do not know beats: those inside a chunk, or of sequences that go on.

    before a token that is due    A^-1 <- lambda0 I + C (A^-1 - lambda0 I),   C <- 1
    for every token               A^-1 <- A^-1 + w u u^T,   C <- c C

What tokens have added to A^-1 fades, and the prior does not. Between two beats nothing fades. So every sequence is cut
at its beats, and `directions` without forgetting computes all pieces at once, each as a row of its own. With G_p the
sum of w u u^T over piece p, A before piece p is

    A_p = (lambda0 I + Y_p)^-1,   Y_(p+1) = C_p (Y_p + G_p).

These are sums: unlike A with a refresh, they need no walk through the tokens. lambda0 I stays whole, so A stays well
conditioned whatever is forgotten, and c may be 0. Autograd derives everything but the pieces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varla.ops.algebra import eye_like, inverse
from varla.ops.directions.settings import DirectionSettings
from varla.ops.features import unit
from varla.ops.packing import pad_packed, unpad_packed

# (inputs k, u, strength of the pieces; A before each) to (a, A after each).
Pieces = Callable[[Sequence[Any], Tensor], tuple[Tensor, Tensor]]


def fading(
    inputs: Sequence[Any], held: Sequence[Tensor], t: Tensor, cu_seqlens: Tensor | None, settings: DirectionSettings,
    fresh: bool, pieces: Pieces,
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """(a [B, T, H, D], [A, f]) from k, u, strength or None, forget, and A, f, t; packed with cu_seqlens.

    `fresh`: all sequences begin here, with t = 0. `pieces` computes the directions of rows that forget nothing.
    """
    with torch.autocast(t.device.type, enabled=False):  # sums and inverses are in the state's precision
        if cu_seqlens is None:
            return _fading(inputs, held, t, None, settings, fresh, pieces)
        rows = [None if x is None else pad_packed(x, cu_seqlens) for x in inputs]
        a, after = _fading(rows, held, t, cu_seqlens.diff().to(t.device), settings, fresh, pieces)
        return unpad_packed(a, cu_seqlens), after


def _fading(
    inputs: Sequence[Any], held: Sequence[Tensor], t: Tensor, lengths: Tensor | None, settings: DirectionSettings,
    fresh: bool, pieces: Pieces,
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """`fading` of rows [N, T, H, *], of which the first `lengths` [N] tokens exist; None: all of them."""
    (k, u, strength, forget), (A, f) = inputs, held
    if k.shape[1] == 0:
        return torch.empty_like(k), [A, f]
    cut = Cut.of(k, t, lengths, settings.beat, fresh)
    k, u, forget = cut(k), cut(u), cut(forget)
    strength = None if strength is None else cut(strength)
    U = unit(u.to(A.dtype))[0]
    weight = settings.length_of_u(U.shape[-1]) ** 2 if strength is None else strength.to(A.dtype)
    G = cut.by_row(torch.einsum("rthd,rthe->rhde", weight * U, U))
    log_C = cut.by_row(forget.to(A.dtype).sum(1)[..., 0])  # [N, pieces, H]
    log_C = torch.cat((log_C[:, :1] + f[:, None], log_C[:, 1:]), 1)
    eye = eye_like(A, A.shape[-1])
    Y = torch.zeros_like(A) if fresh else inverse(A) - settings.lambda0 * eye
    sums = []
    for C, gained in zip(log_C.exp().unbind(1)[:-1], G.unbind(1)[:-1], strict=True):
        Y = C[..., None, None] * (Y + gained)
        sums.append(Y)
    starts = A[:, None]
    if sums:  # all inverses in one call
        starts = torch.cat((starts, inverse(settings.lambda0 * eye + torch.stack(sums, 1))), 1)
    a, ends = pieces((k, u, strength), starts.flatten(0, 1))
    own = torch.arange(len(A), device=A.device)
    return cut.joined(a), [cut.by_row(ends)[own, cut.last], log_C[own, cut.last]]


@dataclass(frozen=True)
class Cut:
    """How rows of T tokens are cut at their beats into `count` pieces of `beat` tokens.

    The first piece of row n begins `before[n]` tokens before the row does. Tokens that do not exist are 0: they change
    nothing. `last` [N] is the piece of each row's last token.
    """

    beat: int
    count: int
    T: int
    before: Tensor | None  # None: no row has seen a token
    lengths: Tensor | None
    last: Tensor

    @classmethod
    def of(cls, k: Tensor, t: Tensor, lengths: Tensor | None, beat: int, fresh: bool) -> "Cut":
        """For rows k [N, T, H, D] that have seen t [N] tokens."""
        T = k.shape[1]
        before = None if fresh else torch.where(t > 0, (t - 1) % beat + 1, 0)
        count = max(1, -(-T // beat)) + (0 if fresh else 1)
        end = torch.full_like(t, T) if lengths is None else lengths
        last = ((end if before is None else end + before) - 1).clamp(min=0) // beat
        return cls(beat, count, T, before, lengths, last)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [N, T, *] as pieces [N count, beat, *]."""
        if self.lengths is not None:
            exists = torch.arange(self.T, device=x.device) < self.lengths[:, None]
            x = torch.where(exists.view(*exists.shape, *[1] * (x.dim() - 2)), x, 0)
        x = torch.cat((x, x.new_zeros(len(x), self.count * self.beat - self.T, *x.shape[2:])), 1)
        if self.before is not None:
            x = self._shifted(x, -self.before)
        return x.reshape(-1, self.beat, *x.shape[2:])

    def by_row(self, x: Tensor) -> Tensor:
        """[N count, *] as [N, count, *]."""
        return x.view(-1, self.count, *x.shape[1:])

    def joined(self, x: Tensor) -> Tensor:
        """The reverse: pieces [N count, beat, *] as rows [N, T, *]."""
        x = self.by_row(x).flatten(1, 2)
        return (x if self.before is None else self._shifted(x, self.before))[:, : self.T]

    def _shifted(self, x: Tensor, by: Tensor) -> Tensor:
        """x [N, L, *] with row n turned back by by[n]: x[n, i] comes from place i + by[n], modulo L."""
        places = (torch.arange(x.shape[1], device=x.device) + by[:, None]) % x.shape[1]
        return x[torch.arange(len(x), device=x.device)[:, None], places]
