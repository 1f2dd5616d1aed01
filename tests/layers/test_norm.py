"""The norm as a module: PyTorch's, in the wider type."""

import pytest
import torch
from torch import nn

from tests.ops.cases import randn
from varla.layers.norm import RMSNorm


@pytest.mark.parametrize("eps", [None, 1e-6, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_pytorchs(dtype, eps):
    ours, theirs = RMSNorm(7, eps).to(dtype), nn.RMSNorm(7, eps).to(dtype)
    x = randn(2, 3, 7, seed=1).to(dtype) * 1e-4
    for module in (ours, theirs):
        nn.init.constant_(module.weight, 3.0)
    assert torch.equal(ours(x), theirs(x))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize(
    ("x", "weight", "wanted"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float64, torch.float64),
    ],
)
def test_the_wider_type(x, weight, wanted):
    assert RMSNorm(4).to(weight)(randn(2, 4, seed=1).to(x)).dtype == wanted


def test_it_says_what_it_is():
    assert repr(RMSNorm(5, 1e-6)) == "RMSNorm(5, eps=1e-06)"
