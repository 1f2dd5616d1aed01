"""Two processes train to the numbers of one."""

import os
import subprocess

import pytest

from tests.training.test_loop import tiny
from tests.warm import python
from varla.runs.settings import dump
from varla.training import Run, train


def test_two_processes_give_the_numbers_of_one(tmp_path):
    """As README starts them. Without a GPU, they are two processes on the CPU."""
    config = tiny("train.batch_size=8", "train.steps=12")
    train(config, tmp_path / "one", device="cpu")
    (tmp_path / "config.yaml").write_text(dump(config.to_dict()))
    command = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "varla"]
    command += ["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON_EXEC": python()}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("chance") == 1, "one of them speaks"
    one, two = (Run(tmp_path / name).metrics() for name in ("one", "two"))
    assert len(one) == len(two) == 12
    for a, b in zip(one, two, strict=True):
        for key in ("loss", "accuracy", "grad norm", "lr"):
            assert b[key] == pytest.approx(a[key], rel=1e-5, abs=1e-6), (a["step"], key)
    assert Run(tmp_path / "two").record()["processes"] == 2


def test_processes_that_would_train_separately_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # but nothing that tells them how to meet
    with pytest.raises(ValueError, match=r"WORLD_SIZE is 2, but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        train(tiny(), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    from accelerate import Accelerator

    monkeypatch.setattr(Accelerator, "num_processes", property(lambda self: 3))
    with pytest.raises(ValueError, match=r"train.batch_size must be a multiple of the 3 processes, got 4"):
        train(tiny(), tmp_path / "run", device="cpu")
