"""varla eval: the numbers of the run's own evaluation, other tasks, and what the model cannot read."""

import pytest

from tests.cli.cases import refused, varla
from varla.training import Run


def evaluate(*arguments):
    return varla("eval", *arguments, "--device", "cpu")


def accuracy(result):
    assert result.exit_code == 0, result.output
    return next(line for line in result.stdout.splitlines() if line.startswith("eval"))


def test_gives_the_accuracy_on_record(trained):
    found = evaluate(trained)
    assert f"accuracy {Run(trained).record()['final']['eval']:.4f}   chance 0.0079" in accuracy(found)
    assert "step-00000004" in found.stdout


def test_another_task_and_more_batches(trained):
    assert "chance 0.3333" in accuracy(
        evaluate(trained, "--set", "task.n=1", "--set", "task.vocab_size=4", "--set", "train.eval_batches=2")
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("task.n=3", ["10 tokens", "learned positions for 7", "model.max_len=10"]),
        ("task.vocab_size=256", ["256 tokens", "knows 128"]),
        ("model.ffn=8", ["model.ffn", "task.*"]),
        ("task.m=8", ["unknown setting 'm'"]),
        ("task.n=two", ["n must be an integer"]),
        ("train.eval_batches=0", ["train.eval_batches"]),
    ],
)
def test_what_cannot_be_evaluated_is_refused(trained, change, words):
    assert refused(evaluate(trained, "--set", change), *words)


def test_longer_sequences_without_positions(tiny, tmp_path):
    options = ["--out", tmp_path / "run", "--device", "cpu", "--quiet", "--set", "model.positions=none"]
    assert varla("train", tiny, *options).exit_code == 0
    assert "chance 0.0079" in accuracy(evaluate(tmp_path / "run", "--set", "task.n=5"))


def test_missing_run_is_refused(tmp_path):
    assert refused(evaluate(tmp_path / "none"), "holds no run")


def test_run_without_a_checkpoint_is_refused(diverged):
    assert refused(evaluate(diverged[0]), "holds no checkpoint")


def test_damaged_checkpoint_is_refused(tiny, tmp_path):
    assert varla("train", tiny, "--out", tmp_path / "run", "--device", "cpu", "--quiet").exit_code == 0
    file = next((tmp_path / "run").glob("checkpoints/*/model.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    assert refused(evaluate(tmp_path / "run"), "model.safetensors")
