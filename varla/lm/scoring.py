"""How well a model predicts text, given so many tokens of context: bits per byte and perplexity, in constant memory."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

PIECE = 2048  # tokens of a window that are read at a time
BATCH = 16_384  # tokens in a call, at the most, over the rows


@dataclass(frozen=True)
class Score:
    """The sum of -ln p over `tokens` predicted tokens, which stand for `bytes` of text."""

    nats: float
    tokens: int
    bytes: float

    @property
    def bits_per_byte(self) -> float:
        """-log2 p of the text, by byte."""
        return self.nats / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """exp of the mean loss of a token."""
        return math.exp(min(700.0, self.nats / self.tokens))


@torch.no_grad()
def score(model: Any, tokens: NDArray[Any], context: int, bytes_per_token: float) -> Score:
    """Score tokens [N] in windows of `context`, each read from an empty state; the last one may be shorter.

    A window's first token is given, not predicted. Windows are read in pieces, so that memory does not grow with
    `context` where the model's state does not.
    """
    if len(tokens) < 2:
        raise ValueError(f"at least 2 tokens are needed to predict one, got {len(tokens)}")
    nats, count = 0.0, 0
    whole = len(tokens) // context
    rows = max(1, BATCH // min(context, PIECE))
    batches = [tokens[i * context : min(i + rows, whole) * context].reshape(-1, context) for i in range(0, whole, rows)]
    rest = tokens[whole * context :]
    with evaluating(model):
        for batch in (*batches, *([rest[None]] if len(rest) > 1 else [])):
            loss, predicted = score_window(model, torch.from_numpy(np.asarray(batch, np.int64)).to(model.device))
            nats, count = nats + loss, count + predicted
    return Score(nats, count, count * bytes_per_token)


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
    """Meanwhile the model is not in training mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def scores(model: Any, tokens: NDArray[Any], contexts: Sequence[int], bytes_per_token: float) -> dict[int, Score]:
    """The same at several context lengths."""
    return {context: score(model, tokens, context, bytes_per_token) for context in contexts}
