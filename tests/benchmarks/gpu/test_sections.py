"""Running a section: whatever goes wrong in it, no measurement is lost."""

import json

from benchmarks.gpu.record import Findings, Options, render, save
from benchmarks.gpu.sections import SECTIONS, run


def test_a_section_that_fails_is_reported_and_overwrites_nothing(results, monkeypatch):
    save("paper", Findings(tables={"a title": [{"ms": 1.0}]}), list(SECTIONS))

    def broken(found, options):
        raise RuntimeError("no luck")

    monkeypatch.setitem(SECTIONS, "paper", broken)
    found = run("paper", Options())
    assert found.error == "RuntimeError: no luck"
    assert "FAILED: RuntimeError: no luck" in render("paper", found)
    assert json.loads(results.read_text())["sections"]["paper"]["error"] is None


def test_what_was_measured_before_a_failure_is_kept(results, monkeypatch):
    def halfway(found, options):
        found.add("a title", ms=1.0)
        raise RuntimeError("no luck")

    monkeypatch.setitem(SECTIONS, "paper", halfway)
    run("paper", Options(quick=True))
    assert not results.exists()
    run("paper", Options())
    kept = json.loads(results.read_text())["sections"]["paper"]
    assert kept["error"] == "RuntimeError: no luck"
    assert kept["tables"] == {"a title": [{"ms": 1.0}]}


def test_a_section_measured_later_takes_its_place_among_the_others(results, monkeypatch):
    for name in ("speed", "paper", "accuracy"):
        monkeypatch.setitem(SECTIONS, name, lambda found, options: found.add("a title", ms=1.0))
        run(name, Options())
    assert list(json.loads(results.read_text())["sections"]) == ["accuracy", "paper", "speed"]
