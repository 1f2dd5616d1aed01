"""The checksum of tensors: it sees names, types, shapes and every bit, and nothing else."""

import pytest
import torch

from varla.files import digest

X = torch.arange(6.0).view(2, 3)


def test_it_does_not_depend_on_order_or_layout():
    y = torch.zeros(2, dtype=torch.int64)
    assert digest({"x": X, "y": y}) == digest({"y": y, "x": X.T.contiguous().T})
    assert digest({}) != digest({"x": torch.zeros(0)})


@pytest.mark.parametrize(
    "other",
    [
        {"y": X},
        {"x": X.view(3, 2)},
        {"x": X.view(torch.int32)},
        {"x": X.to(torch.float64)},
        {"x": X.index_fill(0, torch.tensor([0]), -0.0)},
        {"x": X[:1], "x2": X[1:]},
        {"x": X, "y": torch.zeros(())},
    ],
)
def test_any_difference_shows(other):
    assert digest(other) != digest({"x": X})


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.uint8])
def test_types_that_numpy_does_not_know(dtype):
    assert digest({"x": torch.ones(3, dtype=dtype)}) == digest({"x": torch.ones(3, dtype=dtype)})
