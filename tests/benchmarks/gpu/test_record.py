"""What a section found: how it is judged, shown, and kept beside the others."""

import json
import math

import pytest
import torch

from benchmarks.gpu.record import Findings, render, save


def test_sections_measured_apart_end_up_together(results, monkeypatch):
    monkeypatch.setenv("VARLA_COMMIT", "abc")
    for name, column in (("speed", {"ms": 1.0}), ("accuracy", {"error": 2.0}), ("speed", {"ms": 3.0})):
        save(name, Findings(tables={"a title": [column]}), order=("accuracy", "paper", "speed"))
    kept = json.loads(results.read_text())
    assert list(kept["sections"]) == ["accuracy", "speed"]
    assert kept["sections"]["speed"]["tables"] == {"a title": [{"ms": 3.0}]}
    assert kept["machine"]["commit"] == kept["sections"]["speed"]["commit"] == "abc"
    assert kept["machine"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("value", "limits", "is_met"),
    [
        (1.0, {"most": 1.0}, True),
        (1.1, {"most": 1.0}, False),
        (300.0, {"least": 300}, True),
        (299.0, {"least": 300}, False),
        (None, {"most": 1.0}, False),
        (math.nan, {"most": 1.0}, False),
        (math.nan, {"least": 1.0}, False),
    ],
)
def test_goals(value, limits, is_met):
    found = Findings()
    found.goal("speed", value, **limits)
    assert found.goals[0]["met"] is is_met
    assert ("yes" if is_met else "NO") in render("speed", found)


def test_tables_have_every_column_of_every_row():
    found = Findings(tables={"times": [{"form": "a", "ms": 1234.5}, {"form": "b", "error": "none"}]})
    header, _, first, second = render("speed", found).splitlines()[3:7]
    assert header.split() == ["form", "ms", "error"]
    assert first.split() == ["a", "1234", "-"]
    assert second.split() == ["b", "-", "none"]
