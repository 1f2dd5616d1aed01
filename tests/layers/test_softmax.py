"""Rotary positions: what is turned, by how much, and that only distances count."""

import torch

from tests.ops.cases import error, randn
from varla.layers import build
from varla.layers.softmax import rotate


def test_a_pair_is_turned_by_its_position():
    x = torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    (turned,) = rotate(x, torch.tensor([[3]]), 100.0).view(1, 4)
    angles = torch.tensor([3.0, 3.0 / 10], dtype=torch.float64)  # base ** 0 and base ** (-1 / 2)
    assert error(turned[:2], torch.tensor([1.0, 2.0]) * angles.cos()) <= 1e-14
    assert error(turned[2:], torch.tensor([1.0, 2.0]) * angles.sin()) <= 1e-14


def test_lengths_stay_and_products_depend_on_distances_alone():
    q, k = randn(1, 5, 2, 8, seed=1), randn(1, 5, 2, 8, seed=2)
    near, far = torch.arange(5)[None], torch.arange(5)[None] + 10**6
    assert error(rotate(q, far, 1e4).norm(dim=-1), q.norm(dim=-1)) <= 1e-14
    products = [
        torch.einsum("bthd,bshd->bhts", rotate(q, position, 1e4), rotate(k, position, 1e4)) for position in (near, far)
    ]
    assert error(products[1], products[0]) <= 1e-9


def test_float32_is_right_at_a_million_tokens():
    x = randn(1, 1, 1, 64, seed=1)
    position = torch.tensor([[999_983]])
    assert error(rotate(x.float(), position, 1e4), rotate(x, position, 1e4)) <= 1e-6


def test_bfloat16_stays_bfloat16():
    assert rotate(randn(1, 3, 2, 4, seed=1, dtype=torch.bfloat16), torch.arange(3)[None], 1e4).dtype == torch.bfloat16


def test_without_rotary_the_order_of_the_past_does_not_matter_and_with_it_it_does():
    x = randn(1, 6, 24, seed=1)
    shuffled = x[:, [2, 0, 1, 4, 3, 5]]
    for rotary, same in ((None, True), (1e4, False)):
        torch.manual_seed(0)
        layer = build("softmax", d_model=24, n_heads=3, rotary=rotary).double()
        difference = error(layer(shuffled)[0][:, -1], layer(x)[0][:, -1])
        assert (difference <= 1e-12) == same
