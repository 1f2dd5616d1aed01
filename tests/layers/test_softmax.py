"""Softmax attention with and without rotary positions; those themselves: tests/ops/test_rotary.py."""

import torch

from tests.ops.cases import error, randn
from varla.layers import build


def test_without_rotary_the_order_of_the_past_does_not_matter_and_with_it_it_does():
    x = randn(1, 6, 24, seed=1)
    shuffled = x[:, [2, 0, 1, 4, 3, 5]]
    for rotary, same in ((None, True), (1e4, False)):
        torch.manual_seed(0)
        layer = build("softmax", d_model=24, n_heads=3, rotary=rotary).double()
        difference = error(layer(shuffled)[0][:, -1], layer(x)[0][:, -1])
        assert (difference <= 1e-12) == same
