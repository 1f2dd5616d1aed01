"""Rows without padding, and documents that do not see each other."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.lm.cases import tiny_model
from varla.lm.packing import Rows, collate
from varla.lm.text import Corpus


def make(lengths, seed=0):
    starts = np.cumsum([0, *lengths[:-1]])
    tokens = np.random.default_rng(seed).integers(3, 50, sum(lengths), dtype=np.uint16)
    return Corpus(tokens, starts.astype(np.int64), sum(lengths))


def test_rows_are_the_corpus_and_positions_restart_with_documents():
    rows = Rows(make([5, 3, 9, 1]), 6)
    assert len(rows) == 3
    assert torch.cat([row["input_ids"] for row in rows]).tolist() == rows.corpus.tokens.tolist()
    assert rows[0]["position_ids"].tolist() == [0, 1, 2, 3, 4, 0]
    assert rows[1]["position_ids"].tolist() == [0, 1, 0, 1, 2, 3]
    assert rows[2]["position_ids"].tolist() == [0, 1, 2, 3, 4, 0]
    with pytest.raises(IndexError):
        rows[3]


def test_too_little_text_is_an_error():
    with pytest.raises(ValueError, match="there are 5 tokens of text, not enough for one row of 6"):
        Rows(make([5]), 6)


def test_a_sequences_first_token_is_no_label():
    rows = Rows(make([5, 3, 9, 1]), 6)
    batch = collate([rows[0], rows[1]])
    assert batch["input_ids"].shape == (1, 12)
    hidden = batch["labels"][0] == -100
    assert hidden.nonzero()[:, 0].tolist() == [0, 5, 6, 8]
    assert torch.equal(batch["labels"][~hidden[None]], batch["input_ids"][~hidden[None]])


@pytest.mark.parametrize("mechanisms", ["vla", ["vla", "softmax"]])
def test_nothing_leaks_from_one_document_to_the_next(mechanisms):
    model = tiny_model(mechanisms=mechanisms)
    rows = Rows(make([5, 3, 9, 7]), 12)
    batch = collate([rows[0], rows[1]])
    with torch.no_grad():
        packed = model(batch["input_ids"], position_ids=batch["position_ids"]).logits[0]
        begins = [*(batch["position_ids"][0] == 0).nonzero()[:, 0].tolist(), 24]
        for begin, end in pairwise(begins):
            alone = model(batch["input_ids"][:, begin:end]).logits[0]
            torch.testing.assert_close(packed[begin:end], alone, rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_batch_is_that_of_its_sequences():
    model = tiny_model()
    rows = Rows(make([5, 3, 9, 7]), 12)
    batch = collate([rows[0], rows[1]])
    with torch.no_grad():
        whole = model(**batch).loss
        begins = [*(batch["position_ids"][0] == 0).nonzero()[:, 0].tolist(), 24]
        total, count = 0.0, 0
        for begin, end in pairwise(begins):
            ids = batch["input_ids"][:, begin:end]
            if ids.shape[1] > 1:
                total += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
                count += ids.shape[1] - 1
    assert float(whole) == pytest.approx(total / count, rel=1e-4)
