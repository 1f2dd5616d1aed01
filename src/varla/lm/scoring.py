"""Bits per byte and perplexity of a text at a given context length, in constant memory."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from varla.models.checks import IGNORED

PIECE = 2048  # tokens of a window in one call
BATCH = 16_384  # most tokens in one call, over all rows


@dataclass(frozen=True)
class Score:
    """The sum of -ln p over `tokens` predicted tokens, which stand for `bytes` of text."""

    nats: float
    tokens: int
    bytes: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.nats):
            raise ValueError(f"the loss is {self.nats}: the model's weights hold NaN or infinity, or lead to them")

    @property
    def bits_per_byte(self) -> float:
        """-log2 p of the text, divided by its bytes."""
        return self.nats / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """exp of the mean loss per token."""
        return math.exp(min(700.0, self.nats / self.tokens))


@torch.no_grad()
def score(
    model: Any, tokens: NDArray[Any], context: int, bytes_per_token: float, starts: Sequence[int] | NDArray[Any] = (0,)
) -> Score:
    """Score tokens [N] in windows of at most `context`, each within one document and read from an empty state.

    `starts` says where documents begin. The first token of a window is given, not predicted. Windows are read in
    pieces: memory grows with `context` only if the model's state does.
    """
    if len(tokens) < 2:
        raise ValueError(f"at least 2 tokens are needed to predict one, got {len(tokens)}")
    nats, count = 0.0, 0
    with evaluating(model):
        for call in _calls(windows(len(tokens), starts, context)):
            ids = [torch.from_numpy(np.asarray(tokens[begin:end], np.int64)).to(model.device) for begin, end in call]
            same = len({each.shape[0] for each in ids}) == 1
            loss, predicted = score_window(model, torch.stack(ids)) if same else score_packed(model, ids)
            nats, count = nats + loss, count + predicted
    if not count:
        raise ValueError("there is nothing to predict: every document has one token")
    return Score(nats, count, count * bytes_per_token)


def windows(total: int, starts: Sequence[int] | NDArray[Any], context: int) -> list[tuple[int, int]]:
    """(begin, end) of every window of at least two tokens, the longest first."""
    found = [
        (at, min(at + context, end))
        for begin, end in pairwise([*(int(each) for each in starts if each < total), total])
        for at in range(begin, end, context)
    ]
    return sorted((each for each in found if each[1] - each[0] > 1), key=lambda each: (each[0] - each[1], each[0]))


def _calls(found: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Windows to read in one call: of equal length, or none longer than PIECE; at most BATCH tokens."""
    call: list[tuple[int, int]] = []
    size = 0
    for begin, end in found:
        length = end - begin
        longest = call[0][1] - call[0][0] if call else length
        if call and (size + min(length, PIECE) > BATCH or (length != longest and longest > PIECE)):
            yield call
            call, size = [], 0
        call.append((begin, end))
        size += min(length, PIECE)
    if call:
        yield call


def score_packed(model: Any, ids: Sequence[Tensor]) -> tuple[float, int]:
    """(sum of -ln p, tokens predicted) of sequences of different lengths up to PIECE, in one call."""
    lengths = torch.tensor([0, *(each.shape[0] for each in ids)])
    whole = torch.cat(list(ids))
    logits = model(whole[None], cu_seqlens=lengths.cumsum(0), use_cache=False).logits[0]
    targets = torch.cat([torch.cat((each[1:], each.new_full((1,), IGNORED))) for each in ids])
    loss = cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
    return float(loss.double()), int((targets != IGNORED).sum())


def score_window(model: Any, ids: Tensor) -> tuple[float, int]:
    """(sum of -ln p, tokens predicted) of ids [B, T]."""
    state, total = None, torch.zeros((), dtype=torch.float64, device=ids.device)
    for begin in range(0, ids.shape[1] - 1, PIECE):
        end = min(begin + PIECE, ids.shape[1] - 1)
        state, loss = score_piece(model, state, ids[:, begin:end], ids[:, begin + 1 : end + 1])
        total += loss
    return float(total), ids.shape[0] * (ids.shape[1] - 1)


def score_piece(model: Any, state: Any, ids: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
    """(state after ids [B, T], sum of -ln p of the targets [B, T])."""
    out = model(ids, past_key_values=state, use_cache=True)
    loss = cross_entropy(out.logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return out.past_key_values, loss.double()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put the model in evaluation mode, then back."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def scores(
    model: Any,
    tokens: NDArray[Any],
    contexts: Sequence[int],
    bytes_per_token: float,
    starts: Sequence[int] | NDArray[Any] = (0,),
) -> dict[int, Score]:
    """`score` at several context lengths. Drops lengths that no document reaches, but keeps one."""
    longest = max(end - begin for begin, end in pairwise([*(int(x) for x in starts if x < len(tokens)), len(tokens)]))
    wanted = [each for each in contexts if each <= longest] or list(contexts)[:1]
    return {context: score(model, tokens, context, bytes_per_token, starts) for context in wanted}
