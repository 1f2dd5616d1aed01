"""Rows of a fixed number of tokens, cut from the corpus without padding. Documents in a row do not see each other."""

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

    Positions begin at 0 in every row, also in the middle of a document: a row does not see the row before.
    """

    corpus: Corpus
    context: int

    def __post_init__(self) -> None:
        if len(self.corpus) < self.context:
            raise ValueError(f"there are {len(self.corpus)} tokens of text, not enough for one row of {self.context}")

    def __len__(self) -> int:
        """Whole rows; the rest of the text is not used."""
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
    """Several rows as one packed row: tensors [1, rows * context], as the model takes packed sequences.

    The first token of a sequence is not a label: nothing before it could predict it.
    """
    tokens = torch.cat([row["input_ids"] for row in rows])[None]
    position = torch.cat([row["position_ids"] for row in rows])[None]
    return {"input_ids": tokens, "position_ids": position, "labels": tokens.masked_fill(position == 0, IGNORED)}
