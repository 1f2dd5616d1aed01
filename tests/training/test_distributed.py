"""Two processes train to the numbers of one."""

import os
import subprocess
import sys

import pytest

from tests.training.test_loop import tiny
from varla.runs.settings import dump
from varla.training import Run, train

SCRIPT = """
import sys
from varla.training import from_dict, load, train
train(from_dict(load(sys.argv[1])), sys.argv[2], device="cpu")
"""


def test_two_processes_give_the_numbers_of_one(tmp_path):
    config = tiny("train.batch_size=8", "train.steps=12")
    train(config, tmp_path / "one", device="cpu")
    (tmp_path / "config.yaml").write_text(dump(config.to_dict()))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(tmp_path / "script.py"), str(tmp_path / "config.yaml"), str(tmp_path / "two")]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr[-2000:]
    one, two = (Run(tmp_path / name).metrics() for name in ("one", "two"))
    assert len(one) == len(two) == 12
    for a, b in zip(one, two, strict=True):
        for key in ("loss", "accuracy", "grad norm", "lr"):
            assert b[key] == pytest.approx(a[key], rel=1e-5, abs=1e-6), (a["step"], key)
    assert Run(tmp_path / "two").record()["processes"] == 2


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    from accelerate import Accelerator

    monkeypatch.setattr(Accelerator, "num_processes", property(lambda self: 3))
    with pytest.raises(ValueError, match=r"train.batch_size must be a multiple of the 3 processes, got 4"):
        train(tiny(), tmp_path / "run", device="cpu")
