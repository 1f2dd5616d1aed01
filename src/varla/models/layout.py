"""Which tokens of a batch are read, and as which sequences: padding is left out, packed sequences are kept apart.

The real tokens are laid end to end in one row (`varla.layers.layout`), once for all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from varla.layers.layout import BOTH, Layout, check_mask, real_tokens
from varla.models.checks import IGNORED, check_labels, check_tensor
from varla.ops.packing import check_packing
from varla.ops.split import Packing, Split


@dataclass(frozen=True)
class ModelLayout(Layout):
    """A layout of a model's batch. longest: the number of tokens that the cache of such a call counts."""

    longest: int

    def last(self, x: Tensor, before: Tensor | None) -> Tensor:
        """The last token of each sequence, [N, *] of [1, L, *]; `before` [N, *] where a sequence has none."""
        ends, lengths = self.cu_seqlens[1:].to(x.device), self.cu_seqlens.diff().to(x.device)
        before = x.new_zeros(self.rows, *x.shape[2:]) if before is None else before.to(x.dtype)
        if x.shape[1] == 0:
            return before
        return torch.where((lengths > 0)[:, None], x[0, (ends - 1).clamp(min=0)], before)

    def repeat_at_padding(self, x: Tensor, kept: slice | Tensor, before: Tensor | None) -> Tensor:
        """x [B, T, *] at the kept positions. Padding has the values of the last token read before it in its row.

        `before` [B, *]: the values of that token where it was in an earlier call; zeros if there is none.
        """
        if self.index is None:
            return x[:, kept]
        B, T = self.batch
        place = torch.where(self.read(x.device), torch.arange(T, device=x.device), -1).cummax(1).values[:, kept]
        found = x[torch.arange(B, device=x.device)[:, None], place.clamp(min=0)]
        start = torch.zeros_like(x[:, 0]) if before is None else before.to(x.dtype)
        return torch.where((place >= 0)[..., None], found, start[:, None])

    def unpack_weights(self, weights: Tensor) -> Tensor:
        """Attention weights of N sequences [N, H, Q, cached + Q] to those of tokens [B, H, T, cached + T].

        They are 0 at padding and between sequences.
        """
        (B, T), device = self.batch, weights.device
        token, real = self._tokens(weights.shape[2], device)
        row = torch.full((B * T,), -1, device=device)  # of no sequence: padding
        row[token[real]] = torch.arange(self.rows, device=device)[:, None].expand_as(real)[real]
        place = torch.zeros(B * T, dtype=torch.int64, device=device)
        place[token[real]] = torch.arange(real.shape[1], device=device).expand_as(real)[real]
        row, place = row.view(B, T), place.view(B, T)
        read = row >= 0
        return _rearranged(weights, row, place, read, (row[:, :, None] == row[:, None]) & read[:, None])

    def pack_weights(self, weights: Tensor, longest: int) -> Tensor:
        """The reverse of `unpack_weights`, for N sequences padded to the longest; 0 where a sequence has ended."""
        token, real = self._tokens(longest, weights.device)
        row, place = token // self.batch[1], token % self.batch[1]
        return _rearranged(weights, row, place, real, real[:, :, None] & real[:, None])

    def _tokens(self, longest: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(which of the B * T tokens is at each place of each sequence, whether there is one), both [N, longest]."""
        place = torch.arange(longest, device=device)
        real = place < self.cu_seqlens.diff().to(device)[:, None]
        packed = (self.cu_seqlens[:-1].to(device)[:, None] + place).masked_fill(~real, 0)
        return (packed if self.index is None or not len(self.index) else self.index[packed]), real

    def predicts(self, device: torch.device) -> Tensor:
        """[B, T]: whether a token and its right neighbour are both read, in the same sequence."""
        B, T = self.batch
        read = self.read(device)
        ends = (self.cu_seqlens[1:] - 1)[self.cu_seqlens.diff() > 0].to(device)
        ends = ends if self.index is None else self.index[ends]
        goes_on = read.flatten().index_fill(0, ends, False).view(B, T)
        return goes_on & pad(read[:, 1:], (0, 1))

    def read(self, device: torch.device) -> Tensor:
        """[B, T]: which tokens are no padding."""
        B, T = self.batch
        if self.index is None:
            return torch.ones(B, T, dtype=torch.bool, device=device)
        return torch.zeros(B * T, dtype=torch.bool, device=device).index_fill(0, self.index, True).view(B, T)

    def check_counted(self, labels: Tensor) -> None:
        """Raise if labels [B, T] hold first tokens of packed sequences: a count of labels takes them for predicted.

        A loss divided by such a count would depend on how sequences are split into batches. Labels at padding are
        allowed: generic code makes them.
        """
        read = self.read(labels.device)
        wrong = ~self.predicts(labels.device)[:, :-1] & read[:, :-1] & read[:, 1:]
        if bool((wrong & (labels[:, 1:] != IGNORED)).any()):
            raise ValueError(
                f"labels must be {IGNORED} at the first token of every packed sequence: it is not predicted, but "
                "num_items_in_batch (of Trainer) counts all other labels. DataCollatorWithFlattening "
                f"makes such labels, or labels.masked_fill(position_ids == 0, {IGNORED})"
            )


def _rearranged(weights: Tensor, row: Tensor, place: Tensor, real: Tensor, pair: Tensor) -> Tensor:
    """Weights [*, H, *, cached + *] of the tokens at (row, place), both [R, Q], as [R, H, Q, cached + Q].

    They are 0 for tokens that are not `real` [R, Q], and between new tokens that are no `pair` [R, Q, Q].
    """
    old, new = cut(weights)
    # Indices on both sides of a slice: their dimensions come first, then H.
    old = old[row, :, place].masked_fill(~real[..., None, None], 0.0).transpose(1, 2)
    new = new[row[:, :, None], :, place[:, :, None], place[:, None]]
    return torch.cat((old, new.masked_fill(~pair[..., None], 0.0).permute(0, 3, 1, 2)), 3)


def cut(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights [*, Q, cached + Q] of the cached tokens, and of the new ones."""
    cached = weights.shape[-1] - weights.shape[-2]
    return weights[..., :cached], weights[..., cached:]


@dataclass
class AttentionRecorder:
    """Keeps the weights of softmax layers, each as [B, H, T, past + T].

    It returns the weights with which the layer continues. They are computed from those that are kept, so that gradients
    reach these.
    """

    layout: ModelLayout | None
    past: int
    kept: list[Tensor] = field(default_factory=list)

    def __call__(self, weights: Tensor) -> Tensor:
        """Weights [rows, H, Q, cached + Q]: keep them, and return them."""
        longest = weights.shape[2]
        cached = weights.shape[3] - longest
        full = weights if self.layout is None else self.layout.unpack_weights(weights)
        if cached != self.past:  # the cache does not hold padding
            full = torch.cat((pad(cut(full)[0], (0, self.past - cached)), cut(full)[1]), 3)
        self.kept.append(full)
        if cached != self.past:
            full = torch.cat((full[..., :cached], full[..., self.past :]), 3)
        return full if self.layout is None else self.layout.pack_weights(full, longest)


def find_layout(
    batch: Sequence[int],
    device: torch.device,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Packing,
    past: int,
) -> ModelLayout | None:
    """How to read a batch of [B, T] tokens after `past` others. None: read all, each row as one sequence.

    A token whose mask is 0 is not read, wherever it stands. Position ids matter only where they return to 0: that is
    how transformers' collators mark the beginning of a packed sequence.
    """
    B, T = batch
    if isinstance(cu_seqlens, Split):
        cu_seqlens.check(B, T)
        return None
    if cu_seqlens is not None:
        if attention_mask is not None:
            raise ValueError(BOTH)
        check_packing(cu_seqlens, B, T, device)
        cu_seqlens = cu_seqlens.to("cpu", torch.int64)
        return ModelLayout((B, T), None, cu_seqlens, int(cu_seqlens.diff().max()))
    keep = None if attention_mask is None else check_mask(attention_mask, B, T, past)
    starts = None if position_ids is None else _check_positions(position_ids, B, T)
    if starts is not None and past == 0 and T > 1:
        found = _packed(starts, keep)
        if found is not None:
            return found
    if keep is None:
        return None
    return ModelLayout((B, T), *real_tokens(keep, device), T)


def shifted(labels: Tensor, batch: Sequence[int], layout: ModelLayout | None, count: Tensor | int | None) -> Tensor:
    """The token that each position of a batch [B, T] predicts, from labels [B, T]; IGNORED where it predicts none.

    `count`: the number of labels that the loss will be divided by, if it is given.
    """
    check_labels(labels, *batch)
    wanted = pad(labels[:, 1:].long(), (0, 1), value=IGNORED)  # a small type may not hold it
    if layout is not None:
        wanted = wanted.masked_fill(~layout.predicts(labels.device), IGNORED)
        if count is not None:
            layout.check_counted(labels)
    return wanted


def check_split(attention_mask: Any, position_ids: Any, cache: Any, use_cache: bool | None) -> None:
    """Raise a ValueError if a batch of this rank's tokens comes with what a split does not know."""
    if attention_mask is not None or position_ids is not None:
        raise ValueError("tokens spread over ranks have no attention_mask or position_ids: their split has all offsets")
    if cache is not None or use_cache:
        raise ValueError("tokens spread over ranks have no cache: give no past_key_values, and use_cache=False")


def _packed(starts: Tensor, keep: Tensor | None) -> ModelLayout | None:
    """The layout if a sequence begins within a row, else None; starts, keep [B, T]."""
    B, T = starts.shape
    read = torch.ones_like(starts) if keep is None else keep
    first = read & (read.cumsum(1) == 1)
    if not bool((starts & read & ~first).any()):
        return None
    index = read.flatten().nonzero()[:, 0]
    begins = (starts | first).flatten()[index].nonzero()[:, 0].cpu()
    cu_seqlens = torch.cat((begins, torch.tensor([index.shape[0]])))
    return ModelLayout((B, T), None if keep is None else index, cu_seqlens, int(cu_seqlens.diff().max()))


def _check_positions(position_ids: Tensor, B: int, T: int) -> Tensor:
    """Where position ids are 0, [B, T]."""
    check_tensor("position_ids", position_ids, f"integers [{B}, {T}]")
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, B) or position_ids.shape[1] != T:
        raise ValueError(f"position_ids must have shape [{B}, {T}] or [1, {T}], got {list(position_ids.shape)}")
    return (position_ids == 0).expand(B, T)
