"""varla harness: what the command passes on, and what it keeps quiet. The harness itself: tests/lm/test_harness.py."""

import subprocess

import pytest

from tests.cli.cases import refused, varla
from varla.lm import harness


def model(folder):
    """A folder that looks like a model's."""
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_without_a_model_is_refused_at_once(monkeypatch, trained, tmp_path):
    monkeypatch.setattr(harness, "evaluate", lambda *_, **__: pytest.fail("the tasks were read"))
    assert refused(varla("harness", tmp_path, "--task", "t", "--device", "cpu"), "holds no model")
    assert refused(varla("harness", tmp_path / "none", "--task", "t", "--device", "cpu"), "is not a folder")
    assert refused(varla("harness", trained, "--task", "t", "--device", "cpu"), f"varla eval {trained}")
    (tmp_path / "file").write_text("")
    assert varla("harness", model(tmp_path), "--task", "t", "--include", tmp_path / "file").exit_code == 2


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_used_if_there_is_one(monkeypatch, tmp_path, gpu, device):
    asked = {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr(harness, "evaluate", lambda *_, **options: asked.update(options) or {"t": {"acc,none": 0.5}})
    result = varla("harness", model(tmp_path), "--task", "t")
    assert result.exit_code == 0, result.output
    assert asked["device"] == device
    assert "0.5000" in result.stdout


def test_git_is_not_asked(monkeypatch, tmp_path):
    evaluator = pytest.importorskip("lm_eval.evaluator")
    monkeypatch.setattr(harness, "evaluate", lambda *_, **options: {"t": {"hash": evaluator.get_git_commit_hash()}})
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: pytest.fail("git was asked"))
    assert varla("harness", model(tmp_path), "--task", "t", "--device", "cpu").exit_code == 0
