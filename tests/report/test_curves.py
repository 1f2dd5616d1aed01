"""Learning curves: every run drawn in a look of its own, on axes that fit, and as pictures."""

import errno
from unittest.mock import Mock

import pytest

from varla.layers import MECHANISMS
from varla.report.curves import DASHES, SHAPES, learning_curves, save
from varla.report.series import COLOURS, colours

RUNS = {
    "vla": [{"step": 1, "loss": 3.0}, {"step": 2, "eval": 0.5}, {"step": 4, "eval": 1.0}],
    "linear": [{"step": 2, "eval": 0.25}, {"step": 4, "eval": float("nan")}],
}


def values(chart, layer=0):
    found = chart.to_dict()
    data = found["layer"][layer].get("data") or found["data"]  # Altair moves what all layers share to the top
    return found["datasets"][data["name"]]


def test_points_are_the_logged_values_that_are_finite():
    assert values(learning_curves(RUNS)) == [
        {"run": "vla", "step": 2, "value": 0.5},
        {"run": "vla", "step": 4, "value": 1.0},
        {"run": "linear", "step": 2, "value": 0.25},
    ]
    assert values(learning_curves(RUNS, metric="loss")) == [{"run": "vla", "step": 1, "value": 3.0}]


def test_chance_is_a_rule():
    assert len(learning_curves(RUNS).to_dict()["layer"]) == 1
    chart = learning_curves(RUNS, chance=0.125)
    assert chart.to_dict()["layer"][1]["mark"]["type"] == "rule"
    assert [point["value"] for point in values(chart, layer=1)] == [0.125]


def test_a_chance_far_from_the_curves_is_not_drawn():
    runs = {"vla": [{"step": 1, "eval": 0.97}, {"step": 2, "eval": 0.99}]}
    assert len(learning_curves(runs, chance=0.01).to_dict()["layer"]) == 1


def test_the_axis_fits_the_curves():
    runs = {"vla": [{"step": 1, "eval": 0.011}, {"step": 2, "eval": 0.114}]}
    for chance in (None, 0.008):
        scale = learning_curves(runs, chance=chance).to_dict()["layer"][0]["encoding"]["y"]["scale"]
        assert scale["domain"] == pytest.approx([0, 0.12])


def test_series_differ_in_colour_shape_and_dash():
    count = 40
    runs = {f"run {i}": [{"step": 1, "loss": 1.0}] for i in range(count)}
    encoding = learning_curves(runs, "loss").to_dict()["layer"][0]["encoding"]
    looks = [
        [str(choice) for choice in encoding[channel]["scale"]["range"]] for channel in ("color", "shape", "strokeDash")
    ]
    assert all(encoding[channel]["scale"]["domain"] == list(runs) for channel in ("color", "shape"))
    assert encoding["strokeDash"]["scale"]["domain"] == [*runs, ""]  # unequal, so that legends are not merged
    looks[2].pop()
    assert len(set(zip(*looks, strict=True))) == count
    # Without colour, too, up to as many series as shapes and dashes can tell apart.
    assert len(set(zip(*looks[1:], strict=True))) == len(SHAPES) * len(DASHES)


def test_a_mechanism_has_one_colour_everywhere():
    assert COLOURS.keys() == MECHANISMS.keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    for labels in (list(COLOURS), list(COLOURS)[::-1], ["other", *COLOURS], [f"{name}-mqar-n8" for name in COLOURS]):
        found = dict(zip(labels, colours(labels), strict=True))
        for label in labels[-len(COLOURS) :]:
            assert found[label] == COLOURS[label.removesuffix("-mqar-n8")]
    assert len(set(colours(["vla, A fixed", "vla", "vla-mqar"]))) == 3
    assert colours(["vla, A fixed", "vla"])[1] == colours(["vla, A fixed"])[0] == COLOURS["vla"]
    assert colours(["gated-vla, A fixed", "vlan", "vla"]) == [
        COLOURS["gated-vla"],
        COLOURS["gated-deltanet"],
        COLOURS["vla"],
    ]
    assert len(set(colours([f"run {i}" for i in range(8)]))) == 8


def test_metric_that_nobody_logged_is_refused():
    with pytest.raises(ValueError, match=r"no run has logged 'acc' \(logged: eval, loss\)"):
        learning_curves(RUNS, "acc")
    with pytest.raises(ValueError, match="nothing yet"):
        learning_curves({"vla": []})


def test_png_and_svg(tmp_path):
    chart = learning_curves(RUNS, chance=0.1)
    assert save(chart, tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    svg = save(chart, tmp_path / "CURVES.SVG").read_text()
    assert svg.startswith("<svg")
    assert "linear" in svg


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg, got 'curves\.pdf'"):
        save(learning_curves(RUNS), tmp_path / "curves.pdf")


def test_thousands_of_points_are_drawn():
    runs = {"long": [{"step": i, "loss": 1.0} for i in range(6000)]}
    assert len(values(learning_curves(runs, "loss"))) == 6000


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    chart = learning_curves(RUNS)
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError(errno.EACCES, "Permission denied", ".curves.svg.1")))
    with pytest.raises(OSError, match=r"'.*/curves.svg'"):
        save(chart, tmp_path / "curves.svg")
    assert list(tmp_path.iterdir()) == []
