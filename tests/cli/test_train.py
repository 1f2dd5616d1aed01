"""varla train: folders, settings, resumption, and every way to be refused."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cases import TINY, refused, varla, write
from varla.cli.train import default_folder, read
from varla.training import Run, RunConfig, from_dict
from varla.training.progress import Lines


def train(*arguments):
    return varla("train", *arguments, "--device", "cpu")


def test_trains_and_reports(trained):
    run = Run(trained)
    assert run.record()["status"] == "finished"
    assert run.config() == from_dict(TINY)
    assert [entry["step"] for entry in run.metrics()] == [1, 2, 3, 4]


def test_prints_folder_progress_and_accuracy_beside_chance(tiny, tmp_path):
    result = train(tiny, "--out", tmp_path / "run", "--set", "task.name=mqar-ood", "--set", "train.lr=1e-3")
    assert result.exit_code == 0
    assert str(tmp_path / "run") in result.stdout
    assert "step 4/4" in result.stdout
    for name in ("id", "ood"):
        assert any(line.startswith(name) and "chance 0.0079" in line for line in result.stdout.splitlines())
    assert Run(tmp_path / "run").config().train.lr == 1e-3


def test_quiet_prints_only_the_result(tiny, tmp_path):
    result = train(tiny, "--out", tmp_path / "run", "--quiet")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["run", "eval"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([], "vla-mqar-n8-s42"),
        (["mechanism=linear", "seed=7", "task.n=1"], "linear-mqar-n1-s7"),
        (["train.lr=1e-3", "train.steps=10"], "vla-mqar-n8-s42-steps10-lr0.001"),
        (["preset=tuned", "layer.gain=raw"], "vla-mqar-n8-s42-tuned-gainraw"),
        (["task.name=copy", "task.seq_len=32"], "vla-copy-t32-s42"),
        (["train.lr=3e-4"], "vla-mqar-n8-s42"),
    ],
)
def test_default_folder(changes, name):
    assert default_folder(read(None, changes)) == Path("runs") / name


def test_default_folders_with_long_names_end_in_a_hash():
    many = [f"train.{name}={i + 1}" for i, name in enumerate(("steps", "batch_size", "log_every", "eval_every"))]
    many += ["train.eval_batches=2", "train.eval_batch_size=3", "train.checkpoint_every=4", "train.weight_decay=0.5"]
    first, second = default_folder(read(None, many)), default_folder(read(None, [*many, "train.lr=1"]))
    assert first != second
    assert all(len(each.name) < 40 and each.name.startswith("vla-mqar-n8-s42-") for each in (first, second))


def test_a_second_trial_has_a_folder_of_its_own(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for change in ("train.lr=1e-3", "train.lr=2e-3"):
        assert train(tiny, "--quiet", "--set", change).exit_code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_last_line_has_the_last_loss(tiny, tmp_path):
    many = ["--set", "train.steps=5", "--set", "train.log_every=3", "--set", "train.eval_every=4"]
    result = train(tiny, "--out", tmp_path / "run", *many)
    logged = {entry["step"]: entry for entry in Run(tmp_path / "run").metrics()}
    assert {step for step, entry in logged.items() if "loss" in entry} == {1, 3, 5}
    lines = {line.split("step ")[1].split("/")[0]: line for line in result.stdout.splitlines() if "step " in line}
    assert f"loss {logged[5]['loss']:.3f}" in lines["5"]
    assert "loss" not in lines["4"]


def test_without_a_file_the_defaults():
    assert read(None, []) == RunConfig()
    assert read(None, ["task.n=16"]).task == {"name": "mqar", "n": 16}
    assert read(None, ["task.name=copy"]).task == {"name": "copy"}
    assert read(None, ["task.vocab_size=64"]).task == {"name": "mqar", "n": 8, "vocab_size": 64}


def test_existing_run_is_refused(trained, tiny):
    before = (trained / "record.json").read_text()
    assert refused(train(tiny, "--out", trained), str(trained), f"varla train --resume {trained}", "--out")
    assert (trained / "record.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.stepz=3", ["train.stepz", "did you mean 'train.steps'"]),
        ("mechanizm=vla", ["mechanizm", "did you mean 'mechanism'"]),
        ("mechanism=vlaa", ["vlaa", "did you mean 'vla'"]),
        ("preset=papre", ["did you mean 'paper'"]),
        ("task.name=mqra", ["did you mean 'mqar'"]),
        ("task.m=3", ["unknown setting 'm'"]),
        ("layer.lambda=3", ["lambda", "did you mean 'lambda0'"]),
        ("model.d_modle=3", ["d_modle"]),
        ("train.steps=many", ["train.steps must be int", "'many'"]),
        ("train.steps=0", ["train.steps", "at least 1"]),
        ("train=3", ["train must hold keys and values"]),
        ("train.steps.x=3", ["is a value, not a group"]),
        ("train.steps", ["key=value"]),
        (f"seed={2**64}", ["seed must be below 2**63"]),
        ("model.vocab_size=3", ["model.vocab_size must be at least 128 for this task, got 3"]),
        ("model.max_len=3", ["model.max_len must be at least 7 for this task, got 3"]),
        ("model.ffn=100000000000", ["out of memory"]),
        ("task={1: 2, name: mqar}", ["task must have names as keys, got 1"]),
        ("layer={1: 2}", ["layer must have names as keys, got 1"]),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tiny, tmp_path, change, words):
    assert refused(train(tiny, "--out", tmp_path / "run", "--set", change), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("task: [1, 2", "not valid YAML"),
        ("- 1\n- 2\n", "must hold keys and values"),
        ("steps: 3\n", "unknown key 'steps'"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, word):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert refused(train(path, "--out", tmp_path / "run"), word)


def test_missing_file_is_refused(tmp_path):
    assert refused(train(tmp_path / "none.yaml"), "none.yaml", "No such file")


def test_folder_that_cannot_be_written_is_refused(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    assert refused(train(tiny, "--out", tmp_path / "file" / "run"), "cannot be written")


def test_device_that_is_not_there_is_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert refused(varla("train", tiny, "--device", "cuda"), "no CUDA device")
    assert refused(varla("train", tiny, "--device", "tpu"), "cpu, cuda", "'tpu'")
    assert refused(varla("train", tiny, "--device", "cuda:1"), "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_an_empty_name_is_not_the_working_folder(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    assert train(option, "", "--quiet").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_resume_takes_no_other_settings(trained, tiny):
    for extra in ([tiny], ["--set", "seed=1"], ["--out", trained]):
        assert refused(train("--resume", trained, *extra), "--resume")


def test_resume_of_what_is_no_run_is_refused(tmp_path):
    assert refused(train("--resume", tmp_path), "holds no run")


def test_divergence_is_3_and_recorded(diverged):
    folder, result = diverged
    assert refused(result, "diverged at step 2", code=3)
    assert str(folder) in result.stdout
    assert Run(folder).record()["status"] == "diverged"


def test_ctrl_c_saves_and_resume_gives_the_numbers_of_an_unbroken_run(tiny, tmp_path):
    settings = ["--set", "train.steps=100", "--set", "train.eval_every=100"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    command = [sys.executable, "-m", "varla.cli", "train", tiny, "--out", broken, "--device", "cpu", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert any("step 1/100" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.startswith("stopped and saved after step")
    assert f"varla train --resume {broken}" in stderr
    assert json.loads((broken / "record.json").read_text())["status"] == "interrupted"
    assert train("--resume", broken, "--quiet").exit_code == 0
    assert train(tiny, "--out", whole, "--quiet", *settings).exit_code == 0
    assert losses(broken) == losses(whole)


def test_a_reader_that_leaves_stops_the_run_as_ctrl_c_does(tiny, tmp_path, monkeypatch):
    def leave(progress, step, entry):
        if step == 3:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(Lines, "step", leave)
    result = train(tiny, "--out", tmp_path / "run")
    assert (result.exit_code, Run(tmp_path / "run").record()["status"]) == (130, "interrupted")
    assert f"stopped and saved after step 3; resume with: varla train --resume {tmp_path / 'run'}" in result.stderr


def losses(folder):
    return [(entry["step"], entry["loss"], entry.get("eval")) for entry in Run(folder).metrics()]


def test_config_file_may_leave_out_the_task(tmp_path):
    path = write(tmp_path / "some.yaml", {"seed": 3})
    assert read(path, ["task.n=4"]).task == {"name": "mqar", "n": 4}
    path = write(tmp_path / "nameless.yaml", {"task": {"n": 6}})
    assert read(path, []).task == {"name": "mqar", "n": 6}
    assert read(path, ["task.name=mqar-zoology"]).task == {"name": "mqar-zoology", "n": 6}
