"""Reports of a lab run: they get what metrics.jsonl gets, and a resumed run continues the same one."""

import signal

import pytest

from tests.runs import fake_wandb
from tests.training.test_loop import StopAt, tiny
from varla.training import Interrupted, Run, RunConfig, from_dict, train


def test_wandb_gets_what_is_in_the_metrics_file(monkeypatch, tmp_path):
    runs = fake_wandb.install(monkeypatch)
    config = tiny("train.report_to=[wandb, tensorboard]")
    train(config, tmp_path, device="cpu")
    (run,) = runs
    assert [entry for _, entry in run.logged] == Run(tmp_path).metrics()
    assert [step for step, _ in run.logged] == list(range(1, 31))
    assert run.given["config"] == config.to_dict()
    assert run.exit_code == 0
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_resumed_run_continues_the_same_one(monkeypatch, tmp_path):
    runs = fake_wandb.install(monkeypatch)
    config = tiny("train.report_to=wandb")
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=StopAt(12, signal.SIGINT), device="cpu")
    train(Run(tmp_path).config(), tmp_path, resume=True, device="cpu")
    first, second = runs
    assert first.given == second.given
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert [entry for _, entry in first.logged + second.logged] == Run(tmp_path).metrics()
    assert not (tmp_path / "tensorboard").exists()


def test_without_wandb_nothing_is_written(monkeypatch, tmp_path):
    fake_wandb.remove(monkeypatch)
    with pytest.raises(ValueError, match=r"train\.report_to asks for wandb, which is not installed: pip install wandb"):
        train(tiny("train.report_to=wandb"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    train(tiny("train.report_to=none", "train.steps=2"), tmp_path / "run", device="cpu")  # wandb is not imported
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_what_wandb_refuses_ends_the_run_which_can_be_resumed(monkeypatch, tmp_path):
    fake_wandb.install(monkeypatch, refuse="no account")
    config = tiny("train.report_to=wandb", "train.steps=2")
    with pytest.raises(ValueError, match="wandb cannot begin: no account"):
        train(config, tmp_path, device="cpu")
    assert Run(tmp_path).record()["status"] == "failed"
    runs = fake_wandb.install(monkeypatch)
    assert train(config, tmp_path, resume=True, device="cpu")["status"] == "finished"
    assert len(runs[0].logged) == 2


def test_the_default_is_not_part_of_a_runs_identity():
    """Recorded runs have no such setting, and are found by their settings."""
    assert "report_to" not in RunConfig().to_dict()["train"]
    assert from_dict(RunConfig().to_dict()) == RunConfig()
    chosen = from_dict({"train": {"report_to": ["wandb"]}})
    assert chosen.to_dict()["train"]["report_to"] == ["wandb"]
    assert from_dict(chosen.to_dict()) == chosen
    with pytest.raises(
        ValueError, match=r"train\.report_to must be one of 'tensorboard', 'wandb', 'none', got 'comet'"
    ):
        from_dict({"train": {"report_to": "comet"}})
    with pytest.raises(TypeError, match=r"train\.report_to must be str or list, got 3"):
        from_dict({"train": {"report_to": 3}})
