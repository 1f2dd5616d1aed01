"""Checkpoints that were cut short, or lost a file: a clear error, and nothing is written over."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests.lm.cases import settings, write_text
from varla.lm.checkpoints import SEAL, check_checkpoint, newest, seal, state_of
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
    with pytest.raises(RunError, match=rf"checkpoint-6 is damaged: {name} is missing, was cut short or .* Remove"):
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
    seal(copy / "checkpoint-6")
    check_checkpoint(copy / "checkpoint-6", optimizer=False)
    with pytest.raises(RunError, match="checkpoint-6 is damaged: optimizer"):
        check_checkpoint(copy / "checkpoint-6")


@pytest.mark.parametrize("name", [*FILES, SEAL])
def test_a_flipped_bit_is_found(copy, name):
    file = copy / "checkpoint-6" / name
    content = bytearray(file.read_bytes())
    for at in range(0, len(content), len(content) // 20 + 1):
        content[at] ^= 4
        file.write_bytes(content)
        with pytest.raises(RunError, match="checkpoint-6 is damaged"):
            newest(copy)
        content[at] ^= 4


@pytest.mark.parametrize("missing", range(len(FILES)))
def test_one_that_a_kill_cut_short_is_passed_over(copy, missing):
    """The Trainer writes one file after another; the seal comes last."""
    checkpoint = copy / "checkpoint-6"
    for name in (*FILES[missing + 1 :], SEAL):
        (checkpoint / name).unlink()
    file = checkpoint / FILES[missing]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert newest(copy) == copy / "checkpoint-3"


def test_one_without_a_seal_that_is_whole_is_taken(copy):
    """A kill came after its last file, and the one before may be gone already."""
    (copy / "checkpoint-6" / SEAL).unlink()
    assert newest(copy) == copy / "checkpoint-6"


def test_a_kill_while_it_saves_does_not_block_the_run(run, copy, caplog):
    (copy / "checkpoint-6" / "trainer_state.json").unlink()
    (copy / "checkpoint-6" / SEAL).rename(copy / "checkpoint-3" / f".{SEAL}.123")
    assert train(run[0], copy, resume=True)["steps"] == 6
    assert [path.name for path in copy.rglob(".*")] == [".lock"]
    assert "checkpoint-6 was not saved completely and is removed; resuming from checkpoint-3" in caplog.text
    assert newest(copy) == copy / "checkpoint-6"
    a, b = (load_file(each / "model" / "model.safetensors") for each in (copy, run[1]))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_kill_while_it_saves_the_first_one_begins_anew(copy):
    for name in ("checkpoint-3", "checkpoint-6"):
        (copy / name / "trainer_state.json").unlink()
        (copy / name / SEAL).unlink()
    assert newest(copy) is None


def test_without_the_damaged_one_it_goes_on_from_the_one_before(run, copy):
    (copy / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    shutil.rmtree(copy / "checkpoint-6")
    assert train(run[0], copy, resume=True)["steps"] == 6
    assert state_of(copy / "checkpoint-6")["global_step"] == 6


def test_what_the_run_was_begun_with_is_not_guessed(run, copy):
    (copy / "begun.json").write_text("{")
    with pytest.raises(RunError, match=r"begun.json is damaged"):
        train(run[0], copy, resume=True)
    (copy / "begun.json").unlink()
    with pytest.raises(RunError, match=r"begun.json is missing or damaged"):
        train(run[0], copy, resume=True)
