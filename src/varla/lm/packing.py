"""Rows of a fixed number of tokens, cut from the corpus with no padding; documents know nothing of each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varla.lm.text import Corpus
from varla.models.checks import IGNORED


@dataclass(frozen=True)
class Rows:
    """A dataset: row i is tokens [i * context, (i + 1) * context), with the position of each in its document.

    A document that goes on from the row before begins at position 0 here: a row knows nothing of the others.
    """

    corpus: Corpus
    context: int

    def __post_init__(self) -> None:
        """Refuse a corpus that has not one row."""
        if len(self.corpus) < self.context:
            raise ValueError(f"there are {len(self.corpus)} tokens of text, not enough for one row of {self.context}")

    def __len__(self) -> int:
        """Whole rows; what is left over at the end is not used."""
        return len(self.corpus) // self.context

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """{"input_ids": [context], "position_ids": [context]}."""
        if not 0 <= i < len(self):
            raise IndexError(i)
        begin = i * self.context
        tokens = np.asarray(self.corpus.tokens[begin : begin + self.context], np.int64)
        starts = self.corpus.starts
        inside = starts[np.searchsorted(starts, begin) : np.searchsorted(starts, begin + self.context)] - begin
        first = np.zeros(self.context, np.int64)
        first[inside] = inside
        position = np.arange(self.context) - np.maximum.accumulate(first)
        return {"input_ids": torch.from_numpy(tokens), "position_ids": torch.from_numpy(position)}


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Several rows as one packed batch row: [1, rows * context] each, as the model takes packed sequences.

    A sequence's first token is no label: it follows from nothing.
    """
    tokens = torch.cat([row["input_ids"] for row in rows])[None]
    position = torch.cat([row["position_ids"] for row in rows])[None]
    return {"input_ids": tokens, "position_ids": position, "labels": tokens.masked_fill(position == 0, IGNORED)}
