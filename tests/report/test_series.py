"""Axes: they hold all values and little else, and their ends are round."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from varla.report.series import LARGEST, limits

NUMBERS = st.floats(-LARGEST / 4, LARGEST / 4)


@pytest.mark.parametrize(
    ("values", "metric", "chance", "wanted"),
    [
        ([0.0, 1.0], "eval", None, (0, 1)),
        ([0.011, 0.114], "eval", 0.008, (0, 0.12)),
        ([0.1, 0.3], "eval", None, (0.1, 0.3)),
        ([0.97, 0.999], "eval", 0.008, (0.97, 1)),  # chance is too far away
        ([0.97, 0.999], "eval", 0.96, (0.96, 1)),
        ([2.0, 4.0], "loss", None, (2, 4)),
        ([4.27, 4.88], "loss", None, (4.2, 4.9)),
        ([0.5], "eval", None, (0.25, 0.75)),
        ([0.0], "loss", None, (-0.5, 0.5)),
        ([900.0, 41_000.0], "tokens/s", None, (0, 45_000)),
    ],
)
def test_axes_fit_and_are_round(values, metric, chance, wanted):
    assert limits(values, metric, chance) == pytest.approx(wanted)


@given(st.lists(NUMBERS, min_size=1), st.sampled_from(["eval", "loss"]), st.none() | st.floats())
@example([0.0, 5e-324], "loss", None)
@example([1.0, 1.0 + 3e-16], "loss", None)
@example([1e-310], "eval", 1e-310)
def test_every_value_is_on_its_axis(values, metric, chance):
    low, high = limits(values, metric, chance)
    assert low < high
    slack = 1e-6 * (high - low)
    assert low - slack <= min(values) <= max(values) <= high + slack


@given(st.lists(st.floats(0, 1), min_size=2))
def test_an_axis_is_not_much_longer_than_what_it_holds(values):
    low, high = limits(values, "loss")
    if max(values) - min(values) > 1e-8:
        assert high - low <= 1.5 * (max(values) - min(values))
