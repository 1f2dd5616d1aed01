"""The progress of a run in a terminal."""

import io

import pytest
from rich.console import Console

from varla.training.progress import Bar


@pytest.mark.parametrize("width", [80, 100])
def test_the_bar_gives_way_to_the_numbers(monkeypatch, width):
    screen = io.StringIO()
    monkeypatch.setattr("rich._console", Console(file=screen, width=width, force_terminal=True, color_system=None))
    bar = Bar()
    bar.begin("vla on mqar", 0, 20_000)
    bar.step(12_345, {"loss": 4.825, "accuracy": 0.5, "eval": 0.25, "tokens/s": 2350.0})
    bar.end()
    for words in ("vla on mqar", "12345/20000", "loss 4.825  acc 0.500  eval 0.250  2,350 tok/s", ":"):
        assert words in screen.getvalue()
