"""Training as a CUDA graph: the same numbers as without, to rounding; without a GPU it changes nothing."""

import pytest
import torch

from tests.training.test_loop import numbers, tiny
from varla.layers import MECHANISMS
from varla.training import Diverged, train

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(folder):
    return [entry["loss"] for entry in numbers(folder)]


def test_on_the_cpu_it_changes_nothing(tmp_path):
    train(tiny(), tmp_path / "plain", device="cpu")
    train(tiny("train.graph=true"), tmp_path / "graph", device="cpu")
    assert numbers(tmp_path / "plain") == numbers(tmp_path / "graph")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_same_losses(mechanism, tmp_path):
    changes = [f"mechanism={mechanism}", "model.d_model=32"]
    train(tiny(*changes), tmp_path / "plain", device="cuda")
    train(tiny(*changes, "train.graph=true"), tmp_path / "graph", device="cuda")
    assert losses(tmp_path / "graph") == pytest.approx(losses(tmp_path / "plain"), rel=2e-3)


@pytest.mark.gpu
@gpu
def test_it_goes_on_from_a_checkpoint(tmp_path):
    settings = ["train.graph=true", "model.d_model=32"]
    train(tiny(*settings), tmp_path / "whole", device="cuda")
    train(tiny(*settings), tmp_path / "again", device="cuda")
    newest = sorted((tmp_path / "again" / "checkpoints").iterdir())[-1]
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    train(tiny(*settings), tmp_path / "again", device="cuda", resume=True)
    assert losses(tmp_path / "again") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.gpu
@gpu
def test_it_says_when_it_diverged(tmp_path):
    with pytest.raises(Diverged, match=r"diverged at step \d+"):
        train(tiny("train.graph=true", "model.d_model=32", "train.lr=1e30"), tmp_path / "run", device="cuda")
