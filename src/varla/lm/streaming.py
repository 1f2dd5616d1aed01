"""Scores of a stream of text of any length, in one pass and in constant memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from varla.lm.scoring import BATCH, PIECE, Score, evaluating, score_piece, score_window


@torch.no_grad()
def score_stream(
    model: Any, tokens: Iterable[Sequence[int]], contexts: Sequence[int | None], text_bytes: Callable[[], int]
) -> dict[int | None, Score]:
    """Like `varla.lm.scoring.scores`, for tokens that arrive in pieces of any length and are not kept.

    A context of None is the whole stream as one window. `text_bytes` is called at the end and says how many bytes the
    text had. Memory: a few thousand tokens and one state per context.
    """
    readers = {context: _Reader(model, context) for context in contexts}
    seen = 0
    with evaluating(model):
        for piece in tokens:
            ids = torch.as_tensor(piece, dtype=torch.int64)
            seen += ids.shape[0]
            for reader in readers.values():
                reader.read(ids)
        for reader in readers.values():
            reader.finish()
    if seen < 2:
        raise ValueError(f"at least 2 tokens are needed to predict one, got {seen}")
    share = text_bytes() / seen
    return {context: Score(each.nats, each.count, each.count * share) for context, each in readers.items()}


class _Reader:
    """Scores one stream in windows of `context` tokens.

    Windows of up to PIECE tokens are collected and read in batches of BATCH tokens, as `score` does. Longer ones are
    read one after another, PIECE tokens at a time.
    """

    def __init__(self, model: Any, context: int | None):
        self.model, self.context = model, context
        self.nats, self.count = 0.0, 0
        self.short = context is not None and context <= PIECE
        self.step = PIECE if context is None or not self.short else max(1, BATCH // context) * context
        self.held = torch.zeros(0, dtype=torch.int64)
        self.state: Any = None
        self.last: Tensor | None = None  # the newest token of the window: predicted, not yet read
        self.position = 0  # in the window

    def read(self, ids: Tensor) -> None:
        """Take the next tokens [T]."""
        self.held = torch.cat((self.held, ids))
        while self.held.shape[0] >= self.step:
            self._read(self.held[: self.step])
            self.held = self.held[self.step :].clone()

    def finish(self) -> None:
        """Read what is left at the end."""
        self._read(self.held)

    def _read(self, ids: Tensor) -> None:
        ids = ids.to(self.model.device)
        if not self.short:
            self._go_on(ids)
            return
        assert self.context is not None  # a short one
        whole = ids.shape[0] // self.context * self.context
        for rows in (ids[:whole].view(-1, self.context), ids[None, whole:]):
            if rows.shape[0] and rows.shape[1] > 1:
                self._add(*score_window(self.model, rows))

    def _go_on(self, ids: Tensor) -> None:
        """Read tokens [T <= PIECE] of windows longer than PIECE."""
        while ids.shape[0]:
            room = ids.shape[0] if self.context is None else self.context - self.position
            part, ids = ids[:room], ids[room:]
            path = part if self.last is None else torch.cat((self.last, part))
            if path.shape[0] > 1:
                self.state, loss = score_piece(self.model, self.state, path[None, :-1], path[None, 1:])
                self._add(float(loss), path.shape[0] - 1)
            self.position += part.shape[0]
            self.last = path[-1:]
            if self.position == self.context:
                self.state, self.last, self.position = None, None, 0

    def _add(self, nats: float, count: int) -> None:
        self.nats, self.count = self.nats + nats, self.count + count
