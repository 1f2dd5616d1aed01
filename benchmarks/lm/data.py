"""Documents as bytes on the device, cut into rows that never hold two documents.

A row is a window of one document. Where a document ends inside a row, the rest is padding without labels. Mechanisms
only look back, so no mask is needed, and all steps have the same shape: fast attention kernels apply, the host never
waits, and a step can be a CUDA graph. The cost is the padding, `Texts.padding`. Rows packed with several documents
(varla.lm.packing) have no padding, but none of these advantages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varla.lm.text import documents

END = 0  # the byte after a document; it occurs in no text
IGNORED = -100
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Texts:
    """Training text: tokens [N], one byte each; `first` [R] and `length` [R] of every row of context + 1 tokens."""

    tokens: Tensor
    first: Tensor
    length: Tensor
    context: int

    @classmethod
    def of(cls, texts: Iterable[bytes], context: int, device: torch.device) -> "Texts":
        """Cut documents into rows. The last row of a document begins early, so that it is full if possible."""
        parts, first, length, start = [], [], [], 0
        for text in texts:
            part = np.frombuffer(text + bytes([END]), np.uint8)
            for at in range(0, max(1, len(part) - 1), context):
                at = max(0, min(at, len(part) - context - 1))
                first.append(start + at)
                length.append(min(context + 1, len(part) - at))
            parts.append(part)
            start += len(part)
        if not parts:
            raise ValueError("there is no text to train on")
        parts.append(np.zeros(context + 1, np.uint8))  # so that the last window can be read in full
        tokens = torch.from_numpy(np.concatenate(parts))
        return cls(tokens.to(device), torch.tensor(first).to(device), torch.tensor(length).to(device), context)

    def __len__(self) -> int:
        """Rows."""
        return len(self.first)

    @property
    def padding(self) -> float:
        """The share of positions without a label."""
        return 1 - float((self.length - 1).sum()) / (len(self) * self.context)

    def order(self, rows: int, steps: int, seed: int) -> Tensor:
        """The rows of every step [steps, rows]: all rows in a random order, then all in another, and so on."""
        generator = torch.Generator().manual_seed(seed)
        rounds = -(-rows * steps // len(self))
        drawn = torch.cat([torch.randperm(len(self), generator=generator) for _ in range(rounds)])
        return drawn[: rows * steps].view(steps, rows).to(self.tokens.device)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(inputs, labels) [rows, context] of rows [rows]."""
        offset = torch.arange(self.context + 1, device=rows.device)
        inside = offset < self.length[rows, None]
        ids = self.tokens[self.first[rows, None] + offset].long() * inside
        return ids[:, :-1], torch.where(inside, ids, IGNORED)[:, 1:]


def windows(texts: Sequence[bytes], size: int, most: int) -> NDArray[Any]:
    """Tokens of the documents of at least `size` bytes, as whole windows of that size, at most `most` tokens."""
    found = [text[: len(text) // size * size] for text in texts]
    tokens = np.frombuffer(b"".join(found), np.uint8)
    return tokens[: max(size, most // size * size)]


@dataclass(frozen=True)
class Validation:
    """`reported`: tokens of documents at least as long as the longest context. Shorter contexts divide it, so all
    contexts are scored on the same text and none crosses a document. `tried`: tokens of the other documents, for
    choosing learning rates."""

    reported: NDArray[Any]
    tried: NDArray[Any]

    @classmethod
    def of(cls, texts: Sequence[bytes], longest: int, context: int, scored: int, tried: int) -> "Validation":
        found = cls(
            windows([text for text in texts if len(text) >= longest], longest, scored),
            windows([text for text in texts if len(text) < longest], context, tried),
        )
        if not len(found.reported) or not len(found.tried):
            raise ValueError(f"validation needs documents of {longest} bytes or more, and some from {context} on below")
        return found


def read(folder: Path, part: str) -> list[bytes]:
    """The documents of a corpus made by benchmarks.lm.corpus."""
    return [text.encode() for text in documents(str(folder / f"{part}.jsonl.xz"))]


def own() -> tuple[list[bytes], list[bytes]]:
    """(training, validation) text that is always available: this project's own code."""
    paths = sorted((ROOT / "src/varla").rglob("*.py"))
    texts = [path.read_bytes() for path in paths if path.stat().st_size]
    return [text for i, text in enumerate(texts) if i % 8], texts[::8]
