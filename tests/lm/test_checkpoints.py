"""Checkpoints that were cut short, or lost a file: a clear error, and nothing is written over."""

import shutil

import pytest

from tests.lm.cases import settings, write_text
from varla.lm.checkpoints import check_checkpoint, state_of
from varla.lm.training import train
from varla.training import RunError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(settings, folder) of a run that was cut short after its last checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    chosen = settings(write_text(folder / "text"), "data.validation=0.0")
    train(chosen, folder / "run")
    (folder / "run" / "record.json").unlink()
    return chosen, folder / "run"


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run[1], tmp_path / "run")
    return tmp_path / "run"


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_file_that_was_cut_short(run, copy, name, kept):
    file = copy / "checkpoint-6" / name
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=rf"checkpoint-6 is damaged: {name} is missing or was cut short. Remove"):
        train(run[0], copy, resume=True)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "trainer_state.json"])
def test_a_file_that_is_not_there(copy, name):
    """The Trainer would begin with a new optimizer, and say nothing."""
    (copy / "checkpoint-6" / name).unlink()
    with pytest.raises(RunError, match=f"checkpoint-6 is damaged: {name.removesuffix('.pt')}"):
        check_checkpoint(copy / "checkpoint-6")


def test_without_an_optimizer_for_who_saved_none(copy):
    (copy / "checkpoint-6" / "optimizer.pt").unlink()
    check_checkpoint(copy / "checkpoint-6", optimizer=False)


def test_without_the_damaged_one_it_goes_on_from_the_one_before(run, copy):
    (copy / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    shutil.rmtree(copy / "checkpoint-6")
    assert train(run[0], copy, resume=True)["steps"] == 6
    assert state_of(copy / "checkpoint-6")["global_step"] == 6


def test_what_the_run_was_begun_with_is_not_guessed(run, copy):
    (copy / "texts.json").write_text('["')
    with pytest.raises(RunError, match=r"texts.json is missing or damaged"):
        train(run[0], copy, resume=True)
