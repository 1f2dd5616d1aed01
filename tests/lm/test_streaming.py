"""Scores of a stream are those of the array, of any context, whatever pieces it comes in."""

import numpy as np
import pytest
import torch

from tests.session.cases import tiny
from varla.lm import scoring, streaming
from varla.lm.scoring import score
from varla.lm.streaming import score_stream

MODELS = ["vla", ["linear", "softmax"]]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for module in (scoring, streaming):
        monkeypatch.setattr(module, "PIECE", 16)
        monkeypatch.setattr(module, "BATCH", 64)


def tokens(length):
    return np.random.default_rng(0).integers(3, 259, length)


def cut(array, sizes):
    begin = 0
    while begin < len(array):
        for size in sizes:
            yield array[begin : begin + size].tolist()
            begin += size


@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
@pytest.mark.parametrize("length", [2, 16, 17, 48, 203])
def test_a_stream_scores_as_the_array_does(mechanisms, length):
    model, array = tiny(mechanisms), tokens(length)
    contexts = (2, 5, 16, 17, 40, 48, 1000, None)
    for sizes in ([1000], [1], [7, 0, 30], [16]):
        found = score_stream(model, cut(array, sizes), contexts, lambda: 3 * length)
        assert list(found) == list(contexts)
        for context, each in found.items():
            wanted = score(model, array, context or length, 3.0)
            assert (each.tokens, each.bytes) == (wanted.tokens, pytest.approx(wanted.bytes))
            assert each.nats == pytest.approx(wanted.nats, rel=1e-5)


def test_the_whole_stream_is_what_one_forward_gives():
    model, array = tiny(), tokens(100)
    ids = torch.from_numpy(array)[None]
    with torch.no_grad():
        wanted = model(ids, labels=ids).loss
    found = score_stream(model, [array.tolist()], [None], lambda: 100)[None]
    assert found.nats / found.tokens == pytest.approx(float(wanted), rel=1e-5)
    assert np.log(found.perplexity) == pytest.approx(float(wanted), rel=1e-5)


def test_the_model_is_left_in_the_mode_it_was_in():
    model = tiny().train()
    score_stream(model, [[5, 6, 7]], [None], lambda: 3)
    with pytest.raises(ValueError, match="vocab_size"):
        score_stream(model, [[5, 999, 7]], [None], lambda: 3)
    assert model.training


def test_one_token_predicts_nothing():
    with pytest.raises(ValueError, match="at least 2 tokens are needed to predict one, got 1"):
        score_stream(tiny(), [[5]], [None], lambda: 1)
