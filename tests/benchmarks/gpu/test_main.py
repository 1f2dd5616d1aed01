"""The command `python -m benchmarks.gpu`, where there is no GPU."""

import pytest

from benchmarks.gpu.__main__ import main


def test_without_a_gpu_nothing_is_timed(results, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--only", "speed", "cold"]) == 1
    said = capsys.readouterr().out
    assert "speed: skipped: it measures time on a CUDA GPU" in said
    assert "cold: skipped" in said
    assert not results.exists()


def test_unknown_sections_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "fast"])
    assert "invalid choice: 'fast'" in capsys.readouterr().err
