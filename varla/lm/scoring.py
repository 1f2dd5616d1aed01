"""How well a model predicts text, given so many tokens of context: bits per byte and perplexity, in constant memory."""

import math
from collections.abc import Sequence
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
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    whole = len(tokens) // context
    rows = max(1, BATCH // min(context, PIECE))
    batches = [tokens[i * context : min(i + rows, whole) * context].reshape(-1, context) for i in range(0, whole, rows)]
    rest = tokens[whole * context :]
    for batch in (*batches, *([rest[None]] if len(rest) > 1 else [])):
        loss, predicted = _window(model, torch.from_numpy(np.asarray(batch, np.int64)).to(model.device))
        nats, count = nats + loss, count + predicted
    model.train(was_training)
    return Score(nats, count, count * bytes_per_token)


def _window(model: Any, ids: Tensor) -> tuple[float, int]:
    """(sum of -ln p, tokens predicted) of ids [B, T]."""
    state, total = None, torch.zeros((), dtype=torch.float64, device=ids.device)
    for begin in range(0, ids.shape[1] - 1, PIECE):
        end = min(begin + PIECE, ids.shape[1] - 1)
        out = model(ids[:, begin:end], past_key_values=state, use_cache=True)
        state = out.past_key_values
        losses = cross_entropy(out.logits.float().flatten(0, 1), ids[:, begin + 1 : end + 1].flatten(), reduction="sum")
        total += losses.double()
    return float(total), ids.shape[0] * (ids.shape[1] - 1)


def scores(model: Any, tokens: NDArray[Any], contexts: Sequence[int], bytes_per_token: float) -> dict[int, Score]:
    """The same at several context lengths."""
    return {context: score(model, tokens, context, bytes_per_token) for context in contexts}
