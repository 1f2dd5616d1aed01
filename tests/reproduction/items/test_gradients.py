"""Growth of gradients is that of autograd, and is judged by the operator norm."""

import math

import pytest
import torch

from reproduction.items.gradients import HORIZONS, ITEM, growth
from reproduction.items.recurrence import Inputs, draw, trajectory
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, REPRODUCED
from tests.reproduction.fabricate import all_of, judged
from varla.ops.algebra import apply, outer


def test_growth_is_what_autograd_finds():
    d, T, seed = 4, 12, 5
    found = growth(d, "v3", [T], 1, seed)
    k, a, _ = trajectory(Inputs(d, "v3"), T, 1, seed)
    S0 = torch.zeros(d, d, dtype=torch.float64, requires_grad=True)
    S, v = S0, draw(1, (T, d))
    for t in range(T):
        S = S + outer(v[t] - apply(S, k[t, 0]), a[t, 0])
    G = draw(10_000 + seed, (d, d))
    (S * G).sum().backward()
    assert found["random"][0] == pytest.approx(math.log10(S0.grad.norm() / G.norm()), abs=1e-10)
    assert found["greatest"][0] >= found["random"][0]


def test_growth_beyond_what_float64_holds_is_finite():
    found = growth(8, "v2", [25, 300], 1, 0)
    assert found["random"][1] > 308
    assert math.isfinite(found["random"][1])


def test_with_the_penalty_fixed_no_gradient_grows():
    assert max(growth(6, "v3", [1, 10, 40], 2, 0, {"penalty": "none"})["greatest"]) <= 1e-9


def same(greatest, random):
    n = len(HORIZONS)
    value = {"horizons": list(HORIZONS), "greatest": [greatest] * n, "random": [random] * n}
    return all_of(ITEM, lambda run: {**value, "random by seed": [[random]] * n})


@pytest.mark.parametrize(("greatest", "verdict"), [(0.0, REPRODUCED), (0.01, FALSE)])
def test_a_product_above_one_makes_the_corollary_false(greatest, verdict):
    found = judged(ITEM, "P13-gradient-bound", same(greatest, -1.0))
    assert found.verdict == verdict
    assert found.ours == pytest.approx(10**greatest)


@pytest.mark.parametrize(
    ("elu1", "identity", "verdict"), [(-1.0, -1.0, REPRODUCED), (-1.0, -4.0, CONDITIONAL), (-4.0, -4.0, FALSE)]
)
def test_a_gradient_that_is_gone_has_vanished(elu1, identity, verdict):
    def left(run):
        value = identity if "feature_map" in run.arguments["options"] else elu1
        return {"horizons": list(HORIZONS), "random": [value] * len(HORIZONS)}

    assert judged(ITEM, "P13-gradient-vanishing", all_of(ITEM, left)).verdict == verdict


@pytest.mark.parametrize(("growth_", "verdict"), [(18.5, CONDITIONAL), (4.0, NOT_REPRODUCED)])
def test_the_tables_growth_is_judged_by_orders_of_magnitude(growth_, verdict):
    assert judged(ITEM, "P13-growth-25-32", same(growth_, growth_)).verdict == verdict


@pytest.mark.parametrize(("growth_", "verdict"), [(39.0, CONDITIONAL), (38.0, NOT_REPRODUCED)])
def test_overflow_is_where_float32_ends(growth_, verdict):
    assert judged(ITEM, "P13-overflow", same(growth_, growth_)).verdict == verdict
