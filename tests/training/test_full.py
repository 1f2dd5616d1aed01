"""A full disk: the error names the file, nothing that was saved is lost, and the run resumes to the same numbers."""

import pytest

from tests.runs.full import with_files_up_to
from tests.training.test_loop import numbers, tiny, weights
from varla.training import Run, train


@pytest.mark.parametrize(
    ("size", "steps", "name"),
    [
        (500, 10, "begun.json"),
        (900, 10, "record.json"),
        (5000, 10, "step-00000003/model.safetensors"),
        (20000, 10, "step-00000003/optimizer.safetensors"),
        (9000, 60, "tensorboard"),
        (11000, 60, "tensorboard"),
    ],
)
def test_a_full_disk_names_the_file_and_loses_nothing(tmp_path, monkeypatch, size, steps, name):
    monkeypatch.setenv("VARLA_COMMIT", "a test")
    config = tiny(f"train.steps={steps}", f"train.checkpoint_every={3 if steps == 10 else 60}")
    error = with_files_up_to(size, lambda: train(config, tmp_path / "run", device="cpu"))
    assert isinstance(error, OSError)
    assert f"File too large: '{tmp_path / 'run'}" in str(error)
    assert name in str(error)
    begun = Run(tmp_path / "run").config_file.exists()
    assert begun == (name != "begun.json")
    train(config, tmp_path / "run", resume=begun, device="cpu")
    train(config, tmp_path / "whole", device="cpu")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_line_of_metrics_that_cannot_be_written_is_named(tmp_path):
    run = Run(tmp_path)
    run.log({"step": 1})
    error = with_files_up_to(20, lambda: run.log({"step": 2}))
    assert f"File too large: '{tmp_path / 'metrics.jsonl'}'" in str(error)
    assert run.metrics() == [{"step": 1}], "half a line is none"
