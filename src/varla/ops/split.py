"""Sequences whose tokens are spread over the ranks of a process group: which rank has which tokens.

A `Split` stands where `cu_seqlens` does, in operators, layers and models: each rank gives its own tokens, and the
mechanism passes its state from rank to rank. What is exchanged does not depend on the number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from varla.arguments import check_count
from varla.ops.checks import check_cu_seqlens
from varla.ops.packing import check_packing, sequence_bounds


@dataclass(frozen=True, eq=False)
class Split:
    """Rank r of the group has the tokens bounds[r] to bounds[r + 1] of every row. `Split.even` makes even pieces.

    With `offsets`, the tokens of N packed sequences stand end to end in one row, as with cu_seqlens, and a sequence may
    lie on several ranks. Without, every row is one sequence.

    All ranks of the group must make the same calls: each waits for the others. The loss is the sum of the ranks'
    losses: gradients of what a rank computes reach the inputs of the ranks before it.
    """

    group: "dist.ProcessGroup"
    bounds: tuple[int, ...]
    offsets: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the bounds: they must agree with the group, and leave no rank without a token."""
        _check_group(self.group)
        _check_integers("bounds", self.bounds)
        if len(self.bounds) != self.ranks + 1 or self.bounds[0] != 0:
            raise ValueError(f"bounds must be 0 and the ends of {self.ranks} ranks, got {self.bounds}")
        if any(end <= start for start, end in pairwise(self.bounds)):
            raise ValueError(f"every rank must have at least one token, got bounds {self.bounds}")
        if self.offsets is not None:
            _check_integers("offsets", self.offsets)
            if len(self.offsets) < 2:
                raise ValueError(f"offsets must be 0 and the end of each sequence, got {self.offsets}")
            sequence_bounds(torch.tensor(self.offsets), self.bounds[-1])

    @classmethod
    def even(cls, group: "dist.ProcessGroup", tokens: int, cu_seqlens: Tensor | None = None) -> "Split":
        """Pieces of one size, up to one token: of B rows of `tokens` tokens, or of one row of packed sequences."""
        _check_group(group)
        check_count("tokens", tokens)
        ranks = dist.get_world_size(group)
        if tokens < ranks:
            raise ValueError(f"{tokens} tokens cannot be split over {ranks} ranks: each needs one")
        offsets = None
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, 1, getattr(cu_seqlens, "device", torch.device("cpu")))
            offsets = tuple(cu_seqlens.tolist())
        return cls(group, tuple(tokens * r // ranks for r in range(ranks + 1)), offsets)

    @cached_property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return dist.get_world_size(self.group)

    @cached_property
    def rank(self) -> int:
        """This process's rank in the group."""
        return dist.get_rank(self.group)

    @property
    def start(self) -> int:
        """The first token of this rank."""
        return self.bounds[self.rank]

    @property
    def end(self) -> int:
        """The end of this rank's tokens."""
        return self.bounds[self.rank + 1]

    @property
    def tokens(self) -> int:
        """How many tokens of a row this rank has."""
        return self.end - self.start

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of a tensor that has all tokens in dimension `dim`."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        if not -x.dim() <= dim < x.dim() or x.shape[dim] != self.bounds[-1]:
            raise ValueError(f"x must have all {self.bounds[-1]} tokens in dimension {dim}, got {list(x.shape)}")
        return x.narrow(dim, self.start, self.tokens)

    def check(self, B: int, T: int) -> int:
        """Check this rank's tokens, B rows of T; returns the number of rows of its state."""
        if torch.compiler.is_compiling() and self.ranks > 1:
            raise RuntimeError("torch.compile cannot trace what ranks exchange: use no fullgraph=True")
        if self.tokens != T:
            raise ValueError(f"rank {self.rank} must have {self.tokens} tokens of the split, got {T}")
        if self.offsets is None:
            return B
        if B != 1:
            raise ValueError(f"a split of packed sequences has one batch row: B must be 1, got {B}")
        return len(self._sequences)

    # Which of the packed sequences are here.

    @cached_property
    def _sequences(self) -> range:
        """The packed sequences of this rank. An empty sequence belongs to the rank of the token behind it."""
        assert self.offsets is not None
        last = self.rank == self.ranks - 1
        here = []
        for i, (begin, end) in enumerate(pairwise(self.offsets)):
            own = self.start <= begin < self.end or (last and begin == self.end)
            if own if begin == end else begin < self.end and end > self.start:
                here.append(i)
        return range(here[0], here[-1] + 1)

    @cached_property
    def cu_seqlens(self) -> Tensor | None:
        """Offsets of this rank's sequences among its own tokens, on the CPU; None if nothing is packed."""
        if self.offsets is None:
            return None
        ends = [*self.offsets[self._sequences.start : self._sequences.stop + 1]]
        return torch.tensor([min(max(end, self.start), self.end) - self.start for end in ends])

    def rows(self, x: Tensor) -> Tensor:
        """This rank's rows of what has one row for each sequence of the split."""
        return x if self.offsets is None else x[self._sequences.start : self._sequences.stop]

    @cached_property
    def begin(self) -> int:
        """Where the sequence of this rank's first token begins, among all tokens of the row."""
        return 0 if self.offsets is None else self.offsets[self._sequences.start]

    @cached_property
    def before(self) -> range:
        """The ranks before this one that have tokens of the sequence of its first token."""
        first = self.rank
        while self.begin < self.bounds[first]:
            first -= 1
        return range(first, self.rank)

    @property
    def offset(self) -> int:
        """How many tokens the sequence of the first token has on the ranks before."""
        return self.start - self.begin

    def length_on(self, rank: int) -> int:
        """How many tokens of that sequence a rank in `before` has."""
        return self.bounds[rank + 1] - max(self.bounds[rank], self.begin)

    @cached_property
    def goes_on(self) -> bool:
        """Whether the last sequence of this rank has tokens on the next one."""
        if self.rank == self.ranks - 1:
            return False
        return self.offsets is None or self.offsets[self._sequences.stop] > self.end

    def last(self, x: Tensor) -> Tensor:
        """The tokens of this rank's last sequence, of x [B, T, *]: those that the next rank's state depends on."""
        return x if self.cu_seqlens is None else x[:, int(self.cu_seqlens[-2]) :]

    # States: one row for each sequence of this rank, and without packing one for each row of the batch.

    def only_first(self, x: Tensor) -> Tensor:
        """The rows of x whose sequences may have begun on an earlier rank."""
        return x if self.offsets is None else x[:1]

    def last_row(self, x: Tensor) -> Tensor:
        """The rows of x whose sequences may go on on the next rank."""
        return x if self.offsets is None else x[-1:]

    def first_row(self, x: Tensor, first: Tensor) -> Tensor:
        """x with `first` in the rows of `only_first`."""
        return first if self.offsets is None else torch.cat((first, x[1:]))

    def moved(self, t: Tensor) -> Tensor:
        """Token counts t at the beginnings of sequences, moved on to this rank's tokens."""
        return self.first_row(t, self.only_first(t) + self.offset)

    # Exchange.

    def gather(self, own: Sequence[Tensor], inputs: Sequence[Any]) -> tuple[list[list[Tensor]], list[Any]]:
        """(the tensors `own` of every rank, inputs). They must have the same shapes on all ranks, and one dtype.

        Gradients flow back to the ranks that the tensors came from, in one more exchange. All ranks have to take part,
        also those whose outputs use none of the tensors. So `inputs`, which `own` was computed from and which the
        outputs will be computed from, go through the same node of the graph, unchanged. None stays None.
        """
        flat = torch.cat([x.flatten() for x in own])
        given = [x for x in inputs if x is not None]
        found, *passed = _Gather.apply(flat, self.group, *given)  # type: ignore[no-untyped-call]
        shapes, sizes, rest = [x.shape for x in own], [x.numel() for x in own], iter(passed)
        rows = [
            [x.view(shape) for x, shape in zip(torch.split(row, sizes), shapes, strict=True)] for row in found.unbind()
        ]
        return rows, [None if x is None else next(rest) for x in inputs]

    def to_heads(self, x: Tensor) -> Tensor:
        """[B, own tokens, H, D] to [B, all tokens, H / ranks, D]: every rank gets as many heads."""
        B, _, H, D = x.shape
        heads = H // self.ranks
        found = self._exchange(torch.split(x, heads, 2), [B * size * heads * D for size in self._sizes])
        return torch.cat([part.view(B, -1, heads, D) for part in found], 1)

    def to_tokens(self, x: Tensor) -> Tensor:
        """The reverse of `to_heads`: [B, all tokens, H / ranks, D] to [B, own tokens, H, D]."""
        B, _, heads, D = x.shape
        found = self._exchange(torch.split(x, self._sizes, 1), [B * self.tokens * heads * D] * self.ranks)
        return torch.cat([part.view(B, -1, heads, D) for part in found], 2)

    @property
    def _sizes(self) -> list[int]:
        """How many tokens of a row each rank has."""
        return [end - start for start, end in pairwise(self.bounds)]

    def _exchange(self, parts: Sequence[Tensor], sizes: list[int]) -> Sequence[Tensor]:
        """What every rank sends here, flat tensors of these sizes; `parts` are sent to the ranks."""
        flat = torch.cat([part.flatten() for part in parts])
        sent = [part.numel() for part in parts]
        found = _Exchange.apply(flat, sent, sizes, self.group)  # type: ignore[no-untyped-call]
        return torch.split(found, sizes)


def _check_group(group: Any) -> None:
    """Raise unless this process is in the group.

    None is refused, though elsewhere in torch.distributed it is the group of all ranks: `new_group` can return it to
    a process outside of the new group.
    """
    outside = group is dist.GroupMember.NON_GROUP_MEMBER  # what new_group returns to such a process otherwise
    if not outside and not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group must be a process group, such as torch.distributed.group.WORLD once init_process_group was called, "
            f"got {type(group).__name__}"
        )
    if outside or dist.get_rank(group) < 0:
        raise ValueError("this process is not in the group: it has no part of the tokens")


def _check_integers(name: str, values: object) -> None:
    integers = isinstance(values, tuple | list) and all(
        isinstance(each, int) and not isinstance(each, bool) for each in values
    )
    if not integers:
        raise TypeError(f"{name} must be a tuple of integers, got {values!r}")


Packing = Tensor | Split | None  # what `cu_seqlens` may be


def check_tokens(packing: Packing, B: int, T: int, device: torch.device) -> int:
    """Check cu_seqlens, or a split, against B rows of T tokens of this process; returns the rows of its state."""
    if isinstance(packing, Split):
        return packing.check(B, T)
    return check_packing(packing, B, T, device)


def local(packing: Packing) -> Tensor | None:
    """The offsets of this process's sequences among its own tokens; None if nothing is packed."""
    return packing.cu_seqlens if isinstance(packing, Split) else packing


class _Gather(torch.autograd.Function):
    """own [n] and inputs to (own of every rank [ranks, n], *inputs)."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: "dist.ProcessGroup", *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, own.contiguous(), group=group)
        return torch.stack(found), *(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, dfound: Tensor, *dinputs: Tensor) -> tuple[Tensor | None, ...]:
        # Every rank used what all ranks sent. The gradient of what this one sent is the sum of theirs.
        dfound = dfound.contiguous()
        dist.all_reduce(dfound, group=ctx.group)
        return dfound[dist.get_rank(ctx.group)], None, *dinputs


class _Exchange(torch.autograd.Function):
    """Sends parts of a flat tensor to all ranks, and joins what they send."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: "dist.ProcessGroup") -> Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, dfound: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received = ctx.sizes
        return _exchanged(dfound, received, sent, ctx.group), None, None, None


def _exchanged(x: Tensor, sent: list[int], received: list[int], group: "dist.ProcessGroup") -> Tensor:
    found = x.new_empty(sum(received))
    dist.all_to_all_single(found, x.contiguous(), received, sent, group=group)
    return found
