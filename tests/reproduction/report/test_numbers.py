"""Numbers are short, and exact enough."""

import pytest

from reproduction.claims import Finding
from reproduction.report.numbers import duration, number, spread


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), ("14x", "14x"), (0.12346, "0.1235"), (65536, "65536"), (43000.0, "43000"), (1e-7, "1e-07")],
)  # fmt: skip
def test_number(value, shown):
    assert number(value) == shown


def test_spread_is_shown_for_several_seeds():
    assert spread(Finding("reproduced", 0.5, 0.4, 0.6, 3)) == "0.5 (0.4 to 0.6)"
    assert spread(Finding("reproduced", 0.5, 0.5, 0.5, 1)) == "0.5"
    assert spread(Finding("not run")) == ""


@pytest.mark.parametrize(("seconds", "shown"), [(1.25, "1.2 s"), (600, "10 min"), (9000, "2.5 h")])
def test_duration(seconds, shown):
    assert duration(seconds) == shown
