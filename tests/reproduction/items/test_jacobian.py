"""Proposition 2 is judged by what was measured, and what is measured is right."""

import math

import pytest

from reproduction.items import jacobian
from reproduction.items.jacobian import DIMENSIONS, FITTED_SCALE, ITEM, PAPER_V2
from reproduction.records import Results
from reproduction.runs import QUICK
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import all_of, claim, judged


def flat(norm):
    """Every norm is this one."""

    def value(run):
        if run.function is jacobian.orthogonal:
            return {"equal": 1.0, "orthogonal": norm}
        if run.function is jacobian.fresh_norms:
            return {"mean": 1.0, "low": 1.0, "high": 1.0}
        many = [norm] * 4
        extra = {"greatest": norm, "k.a": many, "closed form off by": 0.0}
        return {"steps": [1, 25, 100, 1000], "mean": many, "low": many, "high": many, **extra}

    return value


@pytest.mark.parametrize(("norm", "verdict"), [(1.0, REPRODUCED), (1.01, FALSE)])
@pytest.mark.parametrize("name", ["P13-unit-jacobian", "P13-orthogonal"])
def test_a_norm_above_one_makes_the_proposition_false(name, norm, verdict):
    found = judged(ITEM, name, all_of(ITEM, flat(norm)))
    assert found.verdict == verdict
    assert found.ours == norm


@pytest.mark.parametrize(("norm", "verdict"), [(1.0004, REPRODUCED), (1.2, CONDITIONAL)])
def test_a_norm_of_one_at_a_fresh_state_only_is_a_condition(norm, verdict):
    assert judged(ITEM, "P13-v3-32", all_of(ITEM, flat(norm))).verdict == verdict


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}


def test_measured_norms_agree_with_the_closed_form_and_exceed_one():
    found = jacobian.spectral_norms(8, "v3", [1, 20], 2, 42)
    assert found["closed form off by"] < 1e-6
    assert found["greatest"] > 1.001
    for mean, low, high in zip(found["mean"], found["low"], found["high"], strict=True):
        assert 1 <= low <= mean <= high <= 2


def test_a_fresh_state_has_the_norm_that_the_table_has():
    assert jacobian.fresh_norms(16, "v3", 4, 42)["high"] == pytest.approx(1, abs=1e-12)
    # a = k / lambda0 for one raw key: |I - a k^T| = |k|^2 / lambda0 - 1 where that is above 1
    found = jacobian.fresh_norms(16, "v2", 1, 42, {"feature_map": "identity"})
    k = jacobian.trajectory(jacobian.Inputs(16, "v2", "identity", penalty="none"), 1, 1, 42)[0][0, 0]
    assert found["mean"] == pytest.approx(float(k @ k) / 0.1 - 1)


def test_orthogonal_vectors_give_the_golden_ratio():
    found = jacobian.orthogonal(4)
    assert found["orthogonal"] == pytest.approx((1 + math.sqrt(5)) / 2)
    assert found["equal"] == pytest.approx(1)


def test_the_fitted_scale_is_one_for_all_four():
    for d in DIMENSIONS:
        assert d * FITTED_SCALE**2 / 0.1 - 1 == pytest.approx(PAPER_V2[d], rel=0.12)


def test_growth_in_proportion_is_told_from_growth_at_first():
    def value(late):
        def at(run):
            if "steps" not in run.arguments:
                return flat(1.0)(run)
            d = run.arguments["d"]
            return {**flat(1.0)(run), "mean": [10.0 * d, 1.0, 1.0, 10.0 * d if late else 1.0]}

        return at

    assert claim(ITEM, "P13-growth").paper == 4
    assert judged(ITEM, "P13-growth", all_of(ITEM, value(True))).verdict == REPRODUCED
    assert judged(ITEM, "P13-growth", all_of(ITEM, value(False))).verdict == CONDITIONAL
