"""Rows of documents, and what is scored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lm.data import END, IGNORED, Texts, Validation, windows

CPU = torch.device("cpu")


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda x: x.replace(b"\0", b"0")), min_size=1, max_size=8))
def test_every_byte_is_predicted_from_its_own_document(texts):
    rows = Texts.of(texts, 8, CPU)
    predicted = []
    for i in range(len(rows)):
        inputs, labels = rows.batch(torch.tensor([i]))
        assert inputs.shape == labels.shape == (1, 8)
        count = int((labels != IGNORED).sum())
        assert (labels[0, count:] == IGNORED).all()
        assert (inputs[0, count + 1 :] == 0).all()
        row = bytes([*inputs[0, :1].tolist(), *labels[0, :count].tolist()])
        assert inputs[0, 1:].tolist() == [*row[1:], *[0] * 8][:7]
        assert any(row in text + bytes([END]) for text in texts)
        predicted.append(row)
    for text in texts:
        whole = text + bytes([END])
        assert all(any(whole[i : i + 2] in row for row in predicted) for i in range(len(whole) - 1))


def test_padding_is_counted():
    rows = Texts.of([b"x" * 16, b"abc"], 8, CPU)
    assert len(rows) == 3
    assert rows.padding == pytest.approx(5 / 24)


def test_all_rows_come_before_any_comes_again():
    rows = Texts.of([b"x" * 80], 8, CPU)
    order = rows.order(rows=3, steps=7, seed=1)
    assert order.shape == (7, 3)
    assert sorted(order.flatten()[:10].tolist()) == list(range(10))
    assert torch.equal(order, rows.order(3, 7, 1))
    assert not torch.equal(order, rows.order(3, 7, 2))


def test_windows_hold_one_document_each():
    found = windows([b"a" * 10, b"b" * 3, b"c" * 8], 4, 100)
    assert bytes(found) == b"a" * 8 + b"c" * 8
    assert len(windows([b"a" * 100], 4, 10)) == 8


def test_rates_are_chosen_on_documents_that_are_not_reported():
    texts = [b"a" * 70, b"b" * 20, b"c" * 64]
    found = Validation.of(texts, 64, 8, 1000, 1000)
    assert np.unique(found.reported).tobytes() == b"ac"
    assert np.unique(found.tried).tobytes() == b"b"
    with pytest.raises(ValueError, match="validation needs documents of 64 bytes or more"):
        Validation.of(texts[1:2], 64, 8, 1000, 1000)


def test_there_must_be_text():
    with pytest.raises(ValueError, match="no text"):
        Texts.of([], 8, CPU)
