"""Figures as charts: told apart without colour, spreads shown, and what cannot be drawn is counted."""

import io
import re
from dataclasses import replace

import pytest
import vl_convert
from PIL import Image

from reproduction.claims import Figure
from reproduction.records import Results
from reproduction.report import charts
from reproduction.runs import FULL
from tests.reproduction.report import fabricated

NORMS, KINDS, EMPTY = fabricated.norm_figures(Results(), FULL)
POINTS = [
    {"x": n, "y": y, "series": "vla", "source": source, "low": y - 0.1, "high": y}
    for source, y in (("ours", 0.9), ("paper", 1.0))
    for n in (4, 8)
]
RECALL = Figure("recall", "Recall", "pairs n", "accuracy", POINTS, log_x=True)


def layers(figure):
    spec = charts.chart(figure).to_dict()
    return spec, [(layer["mark"]["type"], layer) for layer in spec["layer"]]


def test_paper_is_hollow_and_dashed_and_ours_is_filled_and_solid():
    _, found = layers(RECALL)
    line = next(layer for kind, layer in found if kind == "line")
    scale = line["encoding"]["strokeDash"]["scale"]
    assert scale["domain"] == ["paper", "ours"]
    assert scale["range"] == [[6, 3], [1, 0]]
    assert [layer["mark"]["filled"] for kind, layer in found if kind == "point"] == [False, True]
    assert charts.look(RECALL) == "hollow, dashed: paper; filled, solid: ours; bars: least to greatest"


def test_series_differ_in_shape_as_well_as_in_colour():
    points = [{"x": 1, "y": i, "series": f"s{i}", "source": "ours"} for i in range(7)]
    _, found = layers(Figure("f", "t", "x", "y", points))
    encoding = next(layer for kind, layer in found if kind == "point")["encoding"]
    assert len(set(encoding["shape"]["scale"]["range"])) == 7
    assert len(set(encoding["color"]["scale"]["range"])) == 7


def test_axes_are_logarithmic_where_they_are_meant_to_be():
    _, found = layers(NORMS)
    encoding = found[-1][1]["encoding"]
    assert (encoding["x"]["scale"]["type"], encoding["y"]["scale"]["type"]) == ("log", "log")
    assert encoding["y"]["axis"]["values"] == [0.1, 1, 10, 100, 1000, 10000]
    _, found = layers(RECALL)
    assert found[-1][1]["encoding"]["y"]["scale"] == {"domain": [0, 1]}
    assert found[-1][1]["encoding"]["x"]["axis"]["values"] == [4, 8]


def test_spreads_are_bars_for_few_points_and_bands_for_many():
    assert layers(RECALL)[1][0][0] == "rule"
    assert layers(NORMS)[1][0][0] == "area"
    assert not {"rule", "area"} & {kind for kind, _ in layers(KINDS)[1]}


def test_names_on_the_horizontal_axis_are_not_joined_by_lines():
    kinds = [kind for kind, _ in layers(KINDS)[1]]
    assert kinds == ["point", "point"]
    assert charts.look(KINDS) == "hollow: paper; filled: ours"


def test_what_cannot_be_drawn_is_left_out_and_counted():
    values = [1.0, "nan", None, float("inf"), -1.0, 0.0]
    figure = Figure("f", "t", "x", "y", [{"x": 1, "y": y, "series": "s", "source": "ours"} for y in values], log_y=True)
    assert len(charts.drawable(figure)) == 1
    assert charts.look(figure).endswith("5 points not finite or not positive, left out")
    with pytest.raises(ValueError, match="figure empty has no point to draw"):
        charts.chart(EMPTY)


def test_long_lines_have_few_markers():
    dots = [point["x"] for point in charts.drawable(NORMS) if point["dot"] and point["source"] == "ours"]
    assert dots[0] == 1
    assert dots[-1] == 200
    assert len(dots) <= 24


def test_points_have_tooltips():
    _, found = layers(RECALL)
    shown = [field["field"] for field in found[-1][1]["encoding"]["tooltip"]]
    assert shown == ["series", "source", "x", "y", "low", "high"]


def test_numbers_stand_side_by_side():
    table = charts.numbers(RECALL)
    assert table.headers == ("series", "pairs n", "paper", "ours")
    assert table.rows == [
        ("vla", "4", "1 (0.9 to 1)", "0.9 (0.8 to 0.9)"),
        ("vla", "8", "1 (0.9 to 1)", "0.9 (0.8 to 0.9)"),
    ]
    long = charts.numbers(NORMS)
    assert len(long.rows) <= 60
    assert "of 200 rows" in long.note


def test_svg_carries_the_key_of_its_data():
    picture = charts.svg(RECALL)
    assert picture.startswith("<svg")
    assert picture.endswith(charts.stamp(RECALL) + "\n")
    assert "Recall" in picture
    moved = Figure("recall", "Recall", "pairs n", "accuracy", POINTS[:-1], log_x=True)
    assert charts.stamp(moved) != charts.stamp(RECALL)


def test_the_spread_is_named_as_the_item_declares_it():
    assert charts.look(replace(RECALL, spread="95% interval of the mean")).endswith("bars: 95% interval of the mean")
    assert charts.stamp(replace(RECALL, spread="other")) != charts.stamp(RECALL)


def test_steps_on_an_axis_are_written_out():
    points = [{"x": x, "y": x / 1500, "series": "vla", "source": "ours"} for x in range(50, 1501, 50)]
    picture = charts.svg(Figure("steps", "Steps", "step", "accuracy", points))
    words = re.findall(r">([^<>]+)</text>", picture)
    assert {"0.5", "500", "1500"} <= set(words)
    assert not [word for word in words if re.search(r"\de\+", word)]


@pytest.mark.parametrize("length", [5, 20, 40, 70])
def test_a_legend_is_inside_its_picture(length):
    names = [f"{'m' if i % 2 else 'x'}{'abcde' * 20}"[:length] for i in range(6)]
    points = [{"x": x, "y": x, "series": name, "source": "ours"} for name in names for x in (1, 2)]
    picture = charts.svg(replace(RECALL, points=points))
    assert all(name in picture for name in names)
    width = int(re.search(r'width="(\d+)"', picture)[1])
    wider = re.sub(r' width="\d+"', f' width="{width + 500}"', picture, count=1)
    wider = re.sub(r'viewBox="0 0 \d+', f'viewBox="0 0 {width + 500}', wider, count=1)
    beyond = Image.open(io.BytesIO(vl_convert.svg_to_png(wider))).convert("RGBA")
    beyond = beyond.crop((width, 0, width + 500, beyond.height))
    assert {colour for _, colour in beyond.getcolors()} <= {(0, 0, 0, 0), (255, 255, 255, 255)}
