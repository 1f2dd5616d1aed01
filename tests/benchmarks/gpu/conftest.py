"""The GPU benchmark without a GPU: results in a folder of their own, and sections on made-up times."""

import pytest

from benchmarks import measure
from benchmarks.gpu import forms, speed, timing

SMALL = {(16, 1, 20): ((1.0, 3.0), (2.0, 6.0)), (16, 8, 20): ((1.0, 3.0), (2.0, 6.0))}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return tmp_path / "gpu.json"


@pytest.fixture
def fake(monkeypatch):
    """Sections on the CPU: everything is called once, and takes as many milliseconds as it is told to."""
    pytest.importorskip("triton")
    clock = {"ms": 2.0}

    def timed(call, repeats=20):
        call()
        return timing.Timing(clock["ms"], 0.1, 0.5)

    monkeypatch.setattr(forms, "DEVICE", "cpu")
    monkeypatch.setattr(forms, "HEADS", 1)
    monkeypatch.setattr(timing, "timed", timed)
    monkeypatch.setattr(timing, "peak_mb", lambda call: (300.0, 200.0))
    monkeypatch.setattr(timing, "copy_rate", lambda repeats: 4000.0)
    monkeypatch.setattr(speed, "SPEED", SMALL)
    monkeypatch.setattr(speed, "PEAK_LIMIT", ((16, 1, 20), 250.0))
    return clock
