"""The propositions' tests find what can be worked out by hand."""

import pytest

from reproduction.items import propositions, theory
from reproduction.items.theory import FIXED, ITEM, OFFSETS, RECOVERIES
from reproduction.records import Results
from reproduction.runs import QUICK
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import judged, results


def test_one_repeated_key_takes_the_memory_to_one_over_its_offset():
    for s in (0.3, 0.1):
        found = propositions.depleted(s, 500, None)
        assert found["|S|"][-1] == pytest.approx(1 / s, rel=0.02)
        assert found["|S|"][0] < found["|S|"][1] < found["|S|"][2]
        assert found["k.a"] == pytest.approx(s, rel=0.02)


def test_the_norm_is_within_the_sum_of_residuals():
    found = propositions.random_state(6, 80, 2, 0)
    assert 0.99 < found["most of the bound"] <= 1 + 1e-12  # reached by the first token, whose S is its residual
    assert max(found["greatest"]) < found["bound at the end"]


@pytest.mark.parametrize(
    ("gain", "u", "keys", "every", "newest"),
    [
        ("unit", "map", "random", False, False),
        ("unit", "none", "random", False, True),
        ("unit", "key", "orthonormal", True, True),
        ("projection", "map", "random", False, True),
        ("raw", "key", "random", False, False),
    ],
)
def test_what_is_recovered(gain, u, keys, every, newest):
    found = propositions.recovery(4, 6, 3, 0, gain, u, keys)
    assert (found["worst"] < 1e-8) == every
    assert (found["newest"] < 1e-8) == newest


def test_least_squares_recovers_all_as_its_ridge_vanishes():
    found = [propositions.recovery(4, 6, 3, 0, "raw", "key", "random", lambda0)["all"] for lambda0 in (0.1, 1e-3, 1e-5)]
    assert found[0] > 20 * found[1]
    assert found[1] > 50 * found[2]


def test_a_fixed_penalty_is_the_delta_rule():
    random, apart = (propositions.reduction(5, 8, 0, keys) for keys in ("random", "orthonormal"))
    assert random["delta rule"] < 1e-12
    assert random["A fixed"] < 1e-12
    assert random["linear attention"] > 0.1
    assert apart["linear attention"] < 1e-12


def test_a_fixed_penalty_has_the_unit_jacobian():
    found = propositions.fixed_norm(8, 2, 0)
    assert found["fixed"] == pytest.approx(1, abs=1e-9)
    assert found["updated"] > 1.01


def recoveries(error):
    return results((theory.recovery_run(name), {"all": error, "worst": error, "newest": error}) for name in RECOVERIES)


@pytest.mark.parametrize(("error", "verdict"), [(1e-12, REPRODUCED), (0.5, FALSE)])
@pytest.mark.parametrize("name", ["P14-recovery", "P14-newest"])
def test_recovery_is_exact_or_false(name, error, verdict):
    assert judged(ITEM, name, recoveries(error)).verdict == verdict


def states(last, counter):
    random = {"greatest": [9.0], "third quarter": 9.0, "last quarter": last, "residual, last quarter": 0.01}
    found = [(theory.state_run(QUICK), {**random, "most of the bound": 1.0, "bound at the end": 99.0})]
    for s in OFFSETS:
        for refresh_every in (None, 20):
            size = 1 / s if counter else 1.0
            found.append((theory.depleted_run(s, refresh_every), {"t": [1], "|S|": [size], "bound": 1 / s}))
    return results(found)


@pytest.mark.parametrize(
    ("last", "counter", "verdict"), [(9.0, False, REPRODUCED), (9.0, True, CONDITIONAL), (18.0, True, NOT_REPRODUCED)]
)
def test_the_plateau_has_the_counter_example_as_its_condition(last, counter, verdict):
    assert judged(ITEM, "P14-plateau", states(last, counter)).verdict == verdict


def test_small_residuals_and_the_inequality_are_believed():
    assert judged(ITEM, "P14-residual", states(9.0, False)).verdict == REPRODUCED
    assert judged(ITEM, "P14-norm-bound", states(9.0, False)).verdict == REPRODUCED


@pytest.mark.parametrize(
    ("random", "apart", "reduction", "remark"),
    [(0.0, 0.0, REPRODUCED, REPRODUCED), (0.7, 0.0, FALSE, CONDITIONAL), (0.7, 0.7, FALSE, FALSE)],
)
def test_the_reduction_needs_the_residual_to_be_the_value(random, apart, reduction, remark):
    found = results(
        (theory.reduction_run(keys), {"delta rule": 0.0, "A fixed": 0.0, "linear attention": x})
        for keys, x in (("random", random), ("orthonormal", apart))
    )
    assert judged(ITEM, "P14-reduction", found).verdict == reduction
    assert judged(ITEM, "P14-remark", found).verdict == remark


@pytest.mark.parametrize(("fixed", "updated", "verdict"), [(1.3, 1.0, REPRODUCED), (1.0, 1.3, FALSE)])
def test_which_penalty_has_the_unit_jacobian_is_judged_both_ways(fixed, updated, verdict):
    assert judged(ITEM, "P14-active", results([(FIXED, {"fixed": fixed, "updated": updated})])).verdict == verdict


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}
