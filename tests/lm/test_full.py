"""A full disk: the error names what could not be written, and the run resumes to the same weights."""

import pytest
import torch
from safetensors.torch import load_file

from tests.lm.cases import settings, write_text
from tests.runs.full import with_files_up_to
from varla.lm.training import train
from varla.runs.folder import RunFolder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(settings, weights) of a run with room for everything."""
    folder = tmp_path_factory.mktemp("whole")
    chosen = settings(write_text(folder / "text"), "data.validation=0.0", "train.max_steps=4", "train.save_steps=2")
    train(chosen, folder / "run")
    return chosen, load_file(folder / "run" / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("size", "name"),
    [(500, "/tokens/"), (19_500, "checkpoint-2"), (150_000, "checkpoint-2")],
)
def test_a_full_disk_names_the_file_and_loses_nothing(whole, tmp_path, size, name):
    chosen, weights = whole
    error = with_files_up_to(size, lambda: train(chosen, tmp_path / "run"))
    assert isinstance(error, (OSError, ValueError))
    assert str(tmp_path / "run") in str(error)
    assert name in str(error)
    train(chosen, tmp_path / "run", resume=RunFolder(tmp_path / "run").config_file.exists())
    found = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(found[key], weights[key]) for key in weights)
