"""Norms, gates and the rest beside PyTorch's, on made-up times: both compute the same, and all of it is called."""

import pytest
import torch

from benchmarks.gpu import forms, parts
from benchmarks.gpu.record import Findings, Options
from tests.ops.triton.cases import round_to_nearest


@pytest.fixture
def small(fake, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("the calls are made on the CPU")
    monkeypatch.setattr(parts, "SIZE", (2, 5, 2, 4))
    monkeypatch.setattr("varla.ops.triton.convolution.TILES", 1)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return fake


def test_a_row_of_each(small):
    found = Findings()
    parts.run(found, Options(quick=True))
    ((title, rows),) = found.tables.items()
    assert title == "bf16, 10 tokens, width 8"
    assert [row["part"] for row in rows] == list(parts.cases())
    for row in rows:
        assert row["varla, forward us"] == row["PyTorch, both us"] == 2000
        assert row["forward, times as fast"] == row["both, times as fast"] == 1
    norm = next(row for row in rows if row["part"] == "RMS norm of float32")
    moved = 80 * (4 + 2) + 8 * 4  # x, y, weight
    assert norm["forward, of copy's rate"] == pytest.approx(moved / 1e9 / 2e-3 / 4000)
    back = 80 * (4 + 2 + 4) + 2 * 8 * 4  # x, dy, dx, weight and its gradient
    assert norm["both, of copy's rate"] == pytest.approx((moved + back) / 1e9 / 2e-3 / 4000)


def test_ours_and_pytorchs_are_the_same(small, monkeypatch):
    round_to_nearest(monkeypatch)
    assert forms.DEVICE == "cpu"
    for name, (ours, theirs, inputs) in parts.cases().items():
        results = [parts.several(call(*inputs)) for call in (ours, theirs)]
        along = [torch.randn_like(y) for y in results[0]]
        grads = [torch.autograd.grad(each, inputs, along) for each in results]
        for got, wanted in zip((*results[0], *grads[0]), (*results[1], *grads[1]), strict=True):
            assert got.shape == wanted.shape, name
            assert (got.float() - wanted.float()).norm() <= 1e-2 * wanted.float().norm(), name
