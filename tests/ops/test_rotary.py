"""Rotary positions: what is turned, by how much, and that only distances count."""

import torch
from torch import Tensor

from tests.ops.cases import error, randn
from varla.ops.rotary import angles, rotate


def turned(x: Tensor, position: Tensor, base: float) -> Tensor:
    return rotate(x, *angles(position, x.shape[-1], base, x.dtype))


def test_a_pair_is_turned_by_its_position():
    x = torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    (found,) = turned(x, torch.tensor([[3]]), 100.0).view(1, 4)
    wanted = torch.tensor([3.0, 3.0 / 10], dtype=torch.float64)  # base ** 0 and base ** (-1 / 2)
    assert error(found[:2], torch.tensor([1.0, 2.0]) * wanted.cos()) <= 1e-14
    assert error(found[2:], torch.tensor([1.0, 2.0]) * wanted.sin()) <= 1e-14


def test_lengths_stay_and_products_depend_on_distances_alone():
    q, k = randn(1, 5, 2, 8, seed=1), randn(1, 5, 2, 8, seed=2)
    near, far = torch.arange(5)[None], torch.arange(5)[None] + 10**6
    assert error(turned(q, far, 1e4).norm(dim=-1), q.norm(dim=-1)) <= 1e-14
    products = [
        torch.einsum("bthd,bshd->bhts", turned(q, position, 1e4), turned(k, position, 1e4)) for position in (near, far)
    ]
    assert error(products[1], products[0]) <= 1e-9


def test_float32_is_right_at_a_million_tokens():
    x = randn(1, 1, 1, 64, seed=1)
    position = torch.tensor([[999_983]])
    assert error(turned(x.float(), position, 1e4), turned(x, position, 1e4)) <= 1e-6


def test_bfloat16_stays_bfloat16():
    assert turned(randn(1, 3, 2, 4, seed=1, dtype=torch.bfloat16), torch.arange(3)[None], 1e4).dtype == torch.bfloat16


def test_positions_of_one_row_serve_all():
    x, position = randn(3, 5, 2, 8, seed=1), torch.arange(5)[None]
    assert torch.equal(turned(x, position, 1e4), turned(x, position.expand(3, 5), 1e4))
