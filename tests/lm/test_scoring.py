"""Bits per byte: by windows, in pieces, against the plain sum."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.lm.cases import tiny_model
from varla.lm import scoring
from varla.lm.scoring import Score, score, scores


@pytest.fixture(scope="module")
def model():
    return tiny_model(mechanisms=["vla", "softmax"])


TOKENS = np.random.default_rng(0).integers(0, 50, 103, dtype=np.uint16)


@torch.no_grad()
def plain(model, context):
    """The sum of -ln p over windows, each by one forward."""
    total, count = 0.0, 0
    for begin in range(0, len(TOKENS), context):
        ids = torch.from_numpy(TOKENS[begin : begin + context].astype(np.int64))[None]
        if ids.shape[1] > 1:
            logits = model.eval()(ids).logits[0, :-1]
            total += float(cross_entropy(logits, ids[0, 1:], reduction="sum"))
            count += ids.shape[1] - 1
    return total, count


@pytest.mark.parametrize("context", [2, 10, 51, 102, 103, 500])
@pytest.mark.parametrize(("piece", "batch"), [(2048, 16384), (7, 20), (1, 1)])
def test_it_is_the_plain_sum(model, monkeypatch, context, piece, batch):
    monkeypatch.setattr(scoring, "PIECE", piece)
    monkeypatch.setattr(scoring, "BATCH", batch)
    nats, count = plain(model, context)
    found = score(model, TOKENS, context, bytes_per_token=3.0)
    assert found.tokens == count
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.bytes == 3.0 * count


@torch.no_grad()
@pytest.mark.parametrize("context", [2, 7, 40, 500])
@pytest.mark.parametrize(("piece", "batch"), [(2048, 16384), (20, 45), (1, 1)])
def test_documents_know_nothing_of_each_other(model, monkeypatch, context, piece, batch):
    monkeypatch.setattr(scoring, "PIECE", piece)
    monkeypatch.setattr(scoring, "BATCH", batch)
    starts = [0, 5, 6, 40, 41, 70]
    nats, count = 0.0, 0
    for begin, end in zip(starts, [*starts[1:], len(TOKENS)], strict=True):
        for at in range(begin, end, context):
            ids = torch.from_numpy(TOKENS[at : min(at + context, end)].astype(np.int64))[None]
            if ids.shape[1] > 1:
                nats += float(cross_entropy(model.eval()(ids).logits[0, :-1], ids[0, 1:], reduction="sum"))
                count += ids.shape[1] - 1
    found = score(model, TOKENS, context, 1.0, starts)
    assert found.tokens == count
    assert found.nats == pytest.approx(nats, rel=1e-5)


def test_contexts_that_no_document_reaches_are_left_out(model):
    assert list(scores(model, TOKENS, [10, 60, 90], 1.0, [0, 20, 40])) == [10, 60]
    assert list(scores(model, TOKENS, [500], 1.0)) == [500]  # something is said, at least


def test_documents_of_one_token_predict_nothing(model):
    with pytest.raises(ValueError, match="every document has one token"):
        score(model, TOKENS[:3], 10, 1.0, [0, 1, 2])


def test_bits_and_perplexity():
    found = Score(nats=8 * math.log(2), tokens=4, bytes=2.0)
    assert found.bits_per_byte == pytest.approx(4.0)
    assert found.perplexity == pytest.approx(4.0)


def test_a_model_that_gives_no_numbers_has_no_score():
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="the loss is nan: the model's weights hold NaN"):
        score(model, TOKENS, 10, 1.0)


def test_several_contexts_and_the_models_mode(model):
    model.train()
    found = scores(model, TOKENS, [10, 50], 1.0)
    assert list(found) == [10, 50]
    assert model.training


def test_one_token_predicts_nothing(model):
    with pytest.raises(ValueError, match="at least 2 tokens are needed"):
        score(model, TOKENS[:1], 10, 1.0)
