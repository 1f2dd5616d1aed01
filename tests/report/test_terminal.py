"""Curves as text: every run by its own marker, in any width, also where there is little to draw."""

import pytest

from varla.report.series import COLOURS, series
from varla.report.terminal import MARKERS, text_curves

RISING = [(step, step / 100) for step in range(0, 101, 10)]


def lines(*arguments, **options):
    return text_curves(*arguments, **options).plain.split("\n")


def rows(*arguments, **options):
    """The inside of the picture, from the top row down."""
    return [line.split("|", 1)[1] for line in lines(*arguments, **options) if "|" in line]


def test_a_curve_goes_where_its_values_are():
    inside = rows({"run": RISING}, "eval", width=31, height=21)
    assert [line.index("o") for line in inside] == list(range(20, -1, -1))
    assert all(line.count("o") == 1 for line in inside)


def test_axes_are_labelled():
    found = lines({"run": RISING}, "eval", 0.25, width=60)
    assert found[0] == "accuracy (eval)"
    assert [line.split("|")[0].strip() for line in found[1:12]] == ["1", *[""] * 4, "0.5", *[""] * 4, "0"]
    assert found[13].split() == ["step", "0", "100"]
    assert found[14:] == ["  o run", "  . chance 0.25"]
    loss = lines({"run": [(1, 4.0), (2, 2.0)]}, "loss")
    assert [line.split("|")[0].strip() for line in loss[1:12] if line.split("|")[0].strip()] == ["4", "3", "2"]


def test_the_axis_fits_the_data():
    small = lines({"run": [(1, 0.011), (2, 0.114)]}, "eval", 0.008, width=60)
    assert [label for line in small[1:12] if (label := line.split("|")[0].strip())] == ["0.12", "0.06", "0"]
    assert "  . chance 0.008" in small
    large = lines({"run": [(1, 0.97), (2, 0.99)]}, "eval", 0.008, width=60)
    assert [label for line in large[1:12] if (label := line.split("|")[0].strip())] == ["0.99", "0.98", "0.97"]
    assert "  chance 0.008 (outside the plot)" in large


def test_chance_is_a_dotted_line_behind_the_curves():
    inside = rows({"run": RISING}, "eval", 0.5, width=31, height=11)
    assert set(inside[5]) == {".", "o"}
    assert not any("." in line for i, line in enumerate(inside) if i != 5)


def test_curves_that_coincide_are_both_seen():
    level = [(0, 0.5), (100, 0.5)]
    (drawn,) = [line for line in rows({"a": level, "b": level}, "eval", width=30) if line.strip()]
    assert drawn == "ox" * 10


@pytest.mark.parametrize("metric", ["loss", "eval"])
def test_one_point(metric):
    found = lines({"run": [(7, 0.3)]}, metric)
    assert sum(line.count("o") for line in found if "|" in line) == 1
    assert ["step", "7"] in [line.split() for line in found]


def test_a_run_that_ended_early_ends_early():
    inside = rows({"whole": RISING, "cut": [(0, 0.0), (50, 0.0)]}, "eval", width=31)
    assert inside[-1].rindex("x") == 10


def test_every_run_has_its_own_marker_and_a_colour_that_is_seen_on_dark_and_light():
    found = text_curves({f"run {i}": [(i, 0.5)] for i in range(len(MARKERS))}, "eval")
    assert len(set(MARKERS)) == len(MARKERS) >= 2 * len(COLOURS)
    assert not set(MARKERS) & set(".|-+ ") - {"+"}
    shown = {str(span.style).upper() for span in found.spans}
    assert shown >= set(COLOURS.values())
    for colour in COLOURS.values():
        assert 0.15 < sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) / (3 * 255) < 0.85


def test_more_runs_than_markers_are_counted():
    found = lines({f"run {i}": [(0, 0.5), (1, i / 50)] for i in range(50)}, "eval")
    assert sum(line.startswith("  ") and " run " in line for line in found) == len(MARKERS)
    assert f"not drawn: {50 - len(MARKERS)} more runs" in found[-1]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_it_keeps_to_the_width_and_labels_keep_their_ends(width):
    long = {f"runs/{'x' * 200}/seed{i}": RISING for i in range(2)}
    found = lines(long, "eval", width=width)
    assert max(map(len, found)) <= width
    assert [line[-5:] for line in found if "..." in line] == ["seed0", "seed1"]


def test_a_terminal_too_narrow_for_it_gets_the_least():
    assert max(map(len, lines({"run": RISING}, "eval", width=3))) == 20


def test_what_is_too_large_to_draw_is_left_out():
    runs = {"a": [{"step": step, "loss": value} for step, value in ((1, 2.0), (2, 1.7e308), (3, -1.7e308), (4, 1.0))]}
    assert series(runs, "loss") == {"a": [(1, 2.0), (4, 1.0)]}


@pytest.mark.parametrize("chance", [1e308, -1e308, 2.0])
def test_a_chance_outside_the_picture_is_not_drawn(chance):
    assert not any("." in line for line in rows({"run": RISING}, "eval", chance))
