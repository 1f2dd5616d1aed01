"""Moves the tokens of one segment between the user's layout [B, T, H, *] and the working layout [M, n, *].

M = G N, for G chunks of n tokens and N = rows x heads. It is one batch of matrices: chunk 0 of every head, then chunk
1, and so on.
"""

from functools import lru_cache

import torch
from torch import Tensor

from varla.ops.chunk.plan import Block, Plan, Segment

_captured: list[Tensor] = []


def table(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Integers as a cached int64 tensor [len(values)], so that the next call, or a CUDA graph, does not copy them."""
    tensor = _table(values, device)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _captured.append(tensor)  # the graph holds its address
    return tensor


@lru_cache(maxsize=256)
def _table(values: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the cached tensor outlives the call
        return torch.tensor(values, dtype=torch.long, device=device)


class Window:
    """One segment's view of the inputs. Tokens past the end of a row are read as zero and never written."""

    def __init__(self, plan: Plan, block: Block, segment: Segment, packed: bool, device: torch.device):
        """`packed`: all rows are in batch row 0, one after the other, instead of one batch row each."""
        self.n, self.G, self.rows = plan.n, segment.chunks, segment.rows
        self.packed, self.device = packed, device
        self.lo = block.lo
        self.begin = segment.first * plan.n
        self.end = self.begin + segment.chunks * plan.n
        self.lengths = plan.lengths[block.lo : block.lo + segment.rows]
        self.full = self.lengths[-1] >= self.end
        if packed:
            positions = torch.arange(self.begin, self.end, device=device)
            starts = table(plan.starts[block.lo : block.lo + segment.rows], device)
            inside = positions < table(self.lengths, device)[:, None]
            self._inside = inside.flatten()
            self._index = torch.where(inside, starts[:, None] + positions, 0).flatten()

    def load(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, T, H, d] to contiguous [M, n, d] in the given precision."""
        if self.packed:
            y = x[0].index_select(0, self._index)
            if not self.full:  # torch.where and not a product: the value read there may be NaN, from another row
                y = torch.where(self._inside[:, None, None], y, 0)
        else:
            y = x[self.lo : self.lo + self.rows, self.begin : self.end]
            if not self.full:
                y = torch.nn.functional.pad(y, (0, 0, 0, 0, 0, self.end - self.begin - y.shape[1]))
        y = y.reshape(self.rows, self.G, self.n, *x.shape[2:]).permute(1, 0, 3, 2, 4)
        # Convert and make contiguous in one pass.
        y = y.to(dtype, memory_format=torch.contiguous_format, copy=True)
        return y.view(-1, self.n, x.shape[-1])

    def store(self, y: Tensor, x: Tensor) -> None:
        """Write [M, n, d] to the window's tokens of x [B, T, H, d], in x's precision."""
        heads, d = x.shape[2:]
        y = y.view(self.G, self.rows, heads, self.n, d).permute(1, 0, 3, 2, 4)
        if self.packed:
            y = y.reshape(-1, heads, d).to(x.dtype)
            if not self.full:
                y, index = y[self._inside], self._index[self._inside]
            else:
                index = self._index
            x[0].index_copy_(0, index, y)
        else:
            target = x[self.lo : self.lo + self.rows, self.begin : self.end]
            if self.full:
                target.view(self.rows, self.G, self.n, heads, d).copy_(y)
            else:
                target.copy_(y.reshape(self.rows, -1, heads, d)[:, : target.shape[1]])

    def valid(self, heads: int) -> Tensor | None:
        """Which tokens exist, [M, n, 1]; None if all do."""
        if self.full:
            return None
        inside = self._positions() < self._lengths()
        return inside[:, :, None].expand(-1, -1, heads, -1).reshape(-1, self.n, 1)

    def refreshes(self, t: Tensor, period: int, heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The number of refreshes since the chunk began, for rows that have seen t [rows] tokens before this call.

        Returns (before the token [M, n, 1], up to and including it [M, n, 1], in the whole chunk [M, 1]).
        """
        position, t = self._positions(), t[None, :, None]
        begin = torch.minimum(position[:, :, :1], self._lengths())
        finish = torch.minimum(position[:, :, -1:] + 1, self._lengths())
        base = (t + begin) // period
        counts = ((t + position) // period, (t + position + 1) // period, (t + finish) // period)
        before, until, total = (
            (count - base).to(dtype)[:, :, None].expand(-1, -1, heads, -1).flatten(0, 2) for count in counts
        )
        return before[..., None], until[..., None], total

    def due(self, t: Tensor, beat: int, heads: int) -> Tensor:
        """The tokens before which their row has seen a positive multiple of `beat` tokens, [M, n, 1].

        t [rows] are the tokens seen before this call. Tokens past the end of a row are not due.
        """
        position = self._positions()
        seen = t[None, :, None] + position
        due = (seen % beat == 0) & (seen > 0) & (position < self._lengths())
        return due[:, :, None].expand(-1, -1, heads, -1).reshape(-1, self.n, 1)

    def _positions(self) -> Tensor:
        """Position of each token in its row, [G, 1, n]."""
        return torch.arange(self.begin, self.end, device=self.device).view(self.G, 1, self.n)

    def _lengths(self) -> Tensor:
        return table(self.lengths, self.device)[None, :, None]
