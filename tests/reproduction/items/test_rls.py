"""Recursive least squares is ridge regression, and the product of its steps is lambda0 A."""

import pytest

from reproduction.items import rls
from reproduction.items.jacobian import DIMENSIONS
from reproduction.items.rls import ITEM, MAPS, SOURCES
from reproduction.records import Results
from reproduction.runs import QUICK
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import judged, results


def test_least_squares_is_ridge_regression_and_vla_is_not():
    least, vla = rls.fit(6, 40, 0, "raw", "key"), rls.fit(6, 40, 0, "unit", "map")
    assert least["ridge"] < 1e-10
    assert least["prediction"] == pytest.approx(least["prediction of ridge"])
    assert max(least["A"], vla["A"]) < 1e-10
    assert vla["objective"] > 0.1
    assert vla["ridge"] > 0.1


def test_the_two_sources_of_alpha_are_one_where_the_penalty_is_the_key():
    assert rls.sources(6, 30, 0)["most"] < 1e-12


@pytest.mark.parametrize("feature_map", MAPS)
def test_the_product_of_least_squares_steps_never_grows(feature_map):
    found = rls.jacobians(8, 60, 2, 0, "rls", feature_map)
    assert found["greatest"] > 1.5  # single steps do
    assert found["product, greatest"] <= 1 + 1e-9
    assert found["off lambda0 A"] < 1e-8


def jacobians(single, product, growing=False):
    found = []
    for d in DIMENSIONS:
        for form in ("rls", "v3"):
            for feature_map in MAPS:
                size = single * (d / 32 if growing else 1)
                value = {"mean": size, "greatest": size, "product, greatest": product, "product, last": product}
                found.append((rls.jacobian_run(QUICK, d, form, feature_map), {**value, "off lambda0 A": 0.0}))
    return results(found)


@pytest.mark.parametrize(
    ("single", "growing", "verdict"),
    [(320.0, True, REPRODUCED), (2.0, True, NOT_REPRODUCED), (1.0, False, FALSE)],
)
def test_the_norm_of_a_least_squares_step_is_judged_by_size_and_growth(single, growing, verdict):
    assert judged(ITEM, "P17-jacobian-rls", jacobians(single, 1.0, growing)).verdict == verdict


@pytest.mark.parametrize(
    ("product", "explodes", "stable"),
    [(1.0, FALSE, REPRODUCED), (2.0, FALSE, CONDITIONAL), (1e6, REPRODUCED, NOT_REPRODUCED)],
)
def test_gradients_are_judged_by_the_product(product, explodes, stable):
    found = jacobians(1.0, product)
    assert judged(ITEM, "P17-gradient-rls", found).verdict == explodes
    assert judged(ITEM, "P17-gradient-vla", found).verdict == stable


@pytest.mark.parametrize(("single", "verdict"), [(1.0, REPRODUCED), (1.2, FALSE)])
def test_a_step_of_vla_is_held_against_one(single, verdict):
    assert judged(ITEM, "P17-jacobian-vla", jacobians(single, 1.0)).verdict == verdict


@pytest.mark.parametrize(("error", "good"), [(1e-12, True), (0.4, False)])
def test_errors_are_judged_at_1e_8(error, good):
    value = {"A": error, "ridge": error, "objective": error, "prediction": 0.1, "prediction of ridge": 0.1}
    found = results([(rls.fit_run(QUICK, form), value) for form in ("rls", "vla")] + [(SOURCES, {"most": error})])
    for name in ("P17-inverse", "P17-ridge", "P17-objective"):
        assert judged(ITEM, name, found).verdict == (REPRODUCED if good else FALSE)
    assert judged(ITEM, "P17-source", found).verdict == (FALSE if good else REPRODUCED)


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}
