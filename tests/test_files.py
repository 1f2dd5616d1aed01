"""The checksum of tensors: names, types, shapes and every byte count, their order and device do not."""

import pytest
import torch

from varla.files import digest

BASE = {"a": torch.arange(6.0), "b": torch.tensor(3)}


def test_order_and_layout_do_not_count():
    assert digest(dict(reversed(BASE.items()))) == digest(BASE)
    x = torch.arange(12.0).view(3, 4)
    assert digest({"x": x.mT}) == digest({"x": x.mT.contiguous()})
    assert len(digest({})) == 64


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.arange(6.0)},
        {"a": torch.arange(6.0), "c": torch.tensor(3)},
        {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)},
        {"a": torch.arange(6.0).view(torch.int32), "b": torch.tensor(3)},
        {"a": torch.arange(6.0), "b": torch.tensor([3])},
        {"a": -torch.arange(6.0), "b": torch.tensor(3)},
        {"b": torch.arange(6.0), "a": torch.tensor(3)},
    ],
)
def test_everything_else_counts(other):
    assert digest(other) != digest(BASE)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.uint8], ids=str)
def test_any_type(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    found = digest({"x": x, "empty": x[:0], "one": x[0]})
    assert found == digest({"x": x.clone(), "empty": x[:0], "one": x[0]})
    assert found != digest({"x": x.flip(0), "empty": x[:0], "one": x[0]})
