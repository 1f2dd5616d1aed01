"""Training of language models: what it leaves, resuming, stopping, diverging, and folders that cannot be used."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainingArguments

from tests.lm.cases import settings, write_text
from tests.runs import fake_wandb, starts
from varla.lm import training
from varla.lm.folder import load_model
from varla.lm.settings import from_dict
from varla.lm.text import load_tokenizer
from varla.lm.training import build_model, load_texts, read_settings, train
from varla.runs.folder import RunFolder
from varla.training import Diverged, Interrupted, RunError


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(settings(text), folder)


def losses(folder, step=6):
    state = json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


def test_it_leaves_a_model_that_auto_classes_load(run):
    folder, record = run
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert model.config.eos_token_id == tokenizer.eos_token_id
    batch = tokenizer(["abcde"], return_tensors="pt")
    assert batch.input_ids.tolist() == [list(b"abcde")]  # nothing is added: a prompt goes on
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape == (1, 8)


def test_the_model_says_what_length_it_was_trained_for(run, text, tmp_path):
    folder, _ = run
    assert load_model(folder / "model").config.use_cache  # which the Trainer switches off
    assert load_model(folder / "model").config.max_position_embeddings == 64  # data.context, not the preset's 2048
    tokenizer = load_tokenizer("bytes")

    def length(context, **model):
        return build_model(model, 257, tokenizer, context).config.max_position_embeddings

    assert length(4096, preset="5m") == 4096
    assert length(64, preset="5m", max_position_embeddings=512) == 512
    assert length(128, folder=folder / "model") == 128
    assert length(32, folder=folder / "model") == 64


def test_the_record_says_what_was_done(run):
    folder, record = run
    assert json.loads((folder / "record.json").read_text()) == record
    assert record["status"] == "finished"
    assert record["steps"] == 6
    assert record["tokens/s"] > 0
    assert record["loss"] == losses(folder)[6]
    found = record["scores"]["32"]
    assert found["bits per byte"] == pytest.approx(math.log2(found["perplexity"]), rel=2e-3)  # a byte is a token
    assert read_settings(folder).to_dict() == record["settings"]


def test_it_goes_on_to_the_same_numbers(run, text, tmp_path, monkeypatch):
    folder, _ = run
    original, results = training.SavingTrainer.train, []
    monkeypatch.setattr(
        training.SavingTrainer,
        "train",
        lambda *given, **named: results.append(original(*given, **named)) or results[-1],
    )
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    shutil.rmtree(again / "checkpoint-6")
    shutil.rmtree(again / "model")
    (again / "record.json").unlink()
    begun = max(int(each.name.removeprefix("checkpoint-")) for each in again.glob("checkpoint-*"))
    record = train(settings(text), again, resume=True)
    rows, context = (
        record["settings"][part][name] for part, name in (("train", "per_device_train_batch_size"), ("data", "context"))
    )
    made = (record["steps"] - begun) * rows * context
    assert 0 < begun < record["steps"]
    assert record["tokens/s"] * results[0].metrics["train_runtime"] == pytest.approx(made, rel=0.01)
    assert losses(again) == losses(folder)
    a, b = (AutoModelForCausalLM.from_pretrained(each / "model").state_dict() for each in (folder, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_that_is_over_stays_as_it_is(run, text, tmp_path):
    folder, record = run
    assert train(settings(text), folder, resume=True) == record
    cut = tmp_path / "cut"  # after the last step, before the model was written
    shutil.copytree(folder, cut)
    shutil.rmtree(cut / "model")
    (cut / "record.json").unlink()
    again = train(settings(text), cut, resume=True)
    assert again["steps"] == 6
    assert again["scores"] == record["scores"]
    assert losses(cut) == losses(folder)


class Interrupt(TrainerCallback):
    """Ctrl-C at step 2."""

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_says_how_to_go_on(run, text, tmp_path, monkeypatch):
    folder, _ = run
    with monkeypatch.context() as patched:
        patched.setattr(training, "Watch", Watched)
        with pytest.raises(Interrupted, match=r"stopped and saved after step 2; resume with: varla train-lm --resume"):
            train(settings(text), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    assert not (tmp_path / "run" / "model").exists()
    train(settings(text), tmp_path / "run", resume=True)
    assert losses(tmp_path / "run") == losses(folder)


class Watched(training.Watch, Interrupt):
    """The watch, with somebody at the keyboard."""


def test_a_loss_that_is_not_finite_ends_it(text, tmp_path):
    with pytest.raises(Diverged, match=r"diverged by step \d+"):
        train(
            settings(text, "train.learning_rate=1e30", "train.max_grad_norm=0", "train.warmup_steps=0"),
            tmp_path / "run",
        )


def test_a_folder_in_use_is_refused_and_stays_as_it_was(run, text):
    folder, _ = run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(RunError, match="already holds a run: resume it, or choose another folder"):
        train(settings(text), folder)
    with pytest.raises(RunError, match="was made with other settings of seed"):
        train(settings(text, "seed=1"), folder, resume=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_folder_of_something_else_is_refused_and_stays_as_it_was(text, tmp_path):
    (tmp_path / "own" / "checkpoint-5000").mkdir(parents=True)
    (tmp_path / "own" / "checkpoint-5000" / "weights").write_text("precious")
    with pytest.raises(RunError, match="holds 'checkpoint-5000', which is no run's: choose an empty folder"):
        train(settings(text), tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").rglob("*")] == ["checkpoint-5000", "weights"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        train(settings(text), tmp_path / "file")


def test_other_text_is_not_gone_on_with(tmp_path):
    pattern = write_text(tmp_path / "text")
    chosen = settings(pattern)
    train(chosen, tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    (tmp_path / "text" / "0.txt").write_text("something else " * 100)
    with pytest.raises(RunError, match="the text has changed since"):
        train(chosen, tmp_path / "run", resume=True)


def test_a_finished_run_needs_its_text_no_more(text, run):
    folder, record = run
    place = Path(text).parent
    place.rename(place.with_name("elsewhere"))
    try:
        assert train(read_settings(folder), folder, resume=True) == record
    finally:
        place.with_name("elsewhere").rename(place)


def test_settings_that_were_edited_are_refused_by_name(run, tmp_path):
    """Also of a finished run: who asks for more steps expects more steps."""
    folder, _ = run
    shutil.copytree(folder, tmp_path / "run")
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    values["train"] |= {"max_steps": 12, "learning_rate": 0.5}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(values))
    changed = r"train.learning_rate \(not set, now 0.5\), train.max_steps \(6, now 12\)"
    with pytest.raises(RunError, match=rf"config.yaml was edited after the run began. .* other settings of {changed}"):
        train(read_settings(tmp_path / "run"), tmp_path / "run", resume=True)


def test_of_many_starts_in_one_folder_one_trains_and_is_left_alone(tmp_path):
    pattern = write_text(tmp_path / "text", documents=2)

    def start(i):
        train(settings(pattern, f"seed={i}", "train.max_steps=1", "data.validation=0.0"), tmp_path / "run")

    (winner,) = starts.together(start, 4)
    assert read_settings(tmp_path / "run").seed == winner
    record = RunFolder(tmp_path / "run").record()
    assert (record["status"], record["settings"]["seed"]) == ("finished", winner)
    assert [path.name for path in (tmp_path / "run").rglob(".*")] == [".lock"]
    (tokens,) = (tmp_path / "run" / "tokens").glob("*/tokens.bin")
    texts = [path.read_bytes() for path in sorted((tmp_path / "text").iterdir())]
    assert np.fromfile(tokens, np.uint16).tolist() == [token for each in texts for token in (*each, 256)]


def test_a_start_that_was_killed_before_it_claimed_the_folder_does_not_block_it(text, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", "begun.json", ".config.yaml.123"):
        (folder / name).write_text("")
    (folder / "tokens" / ".half.123").mkdir(parents=True)
    assert train(settings(text, "train.max_steps=1"), folder)["status"] == "finished"
    assert [path.name for path in folder.rglob(".*")] == [".lock"]


def test_tensorboards_files_are_in_the_runs_folder(text, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    for name in ("one", "two"):
        train(settings(text, "train.report_to=tensorboard", "train.max_steps=1"), tmp_path / name)
        assert len(list((tmp_path / name / "logs").glob("events*"))) == 1
    assert not (tmp_path / "elsewhere").exists()
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "elsewhere")


def test_wandb_gets_what_the_trainer_logs_and_a_resumed_run_continues_it(text, tmp_path, monkeypatch):
    runs = fake_wandb.install(monkeypatch)
    folder, chosen = tmp_path / "run", settings(text, "train.report_to=wandb")
    with monkeypatch.context() as patched:
        patched.setattr(training, "Watch", Watched)
        with pytest.raises(Interrupted):
            train(chosen, folder)
    train(read_settings(folder), folder, resume=True)
    first, second = runs
    assert first.given == second.given
    assert first.given["id"] == json.loads((folder / "wandb.json").read_text())["id"]
    assert (first.exit_code, second.exit_code) == (1, 0)
    logged = [entry for _, entry in first.logged + second.logged]
    found = {entry["train/global_step"]: entry["train/loss"] for entry in logged if "train/loss" in entry}
    assert found == losses(folder)


def test_without_wandb_nothing_is_written(text, tmp_path, monkeypatch):
    fake_wandb.remove(monkeypatch)
    with pytest.raises(ValueError, match=r"train\.report_to asks for wandb, which is not installed: pip install wandb"):
        train(settings(text, "train.report_to=[tensorboard, wandb]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_wandb_refuses_leaves_the_folder_free(text, tmp_path, monkeypatch):
    fake_wandb.install(monkeypatch, refuse="no account")
    chosen = settings(text, "train.report_to=wandb", "train.max_steps=1")
    with pytest.raises(ValueError, match="wandb cannot begin: no account"):
        train(chosen, tmp_path / "run")
    fake_wandb.install(monkeypatch)
    assert train(chosen, tmp_path / "run")["status"] == "finished"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.report_to=nonsense", "nonsense is not supported, only"),
        ("train.report_to=comet_ml", "the Trainer cannot begin: CometCallback requires comet"),
        ("train.fsdp=true", "only works in distributed training"),
    ],
)
def test_what_the_trainer_refuses_leaves_the_folder_free(text, tmp_path, change, message):
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        train(settings(text, change, "train.max_steps=1"), folder)
    assert [path.name for path in folder.iterdir()] == ["tokens"]
    assert train(settings(text, "train.max_steps=1"), folder)["status"] == "finished"


def test_what_the_trainer_refuses_is_no_reason_to_give_up_a_run(run, monkeypatch):
    folder, _ = run
    before = sorted(path.name for path in folder.iterdir())
    (folder / "record.json").rename(folder / "aside")
    monkeypatch.setattr("varla.lm.training.SavingTrainer", Mock(side_effect=RuntimeError("no such package")))
    try:
        with pytest.raises(ValueError, match="the Trainer cannot begin: no such package"):
            train(read_settings(folder), folder, resume=True)
    finally:
        (folder / "aside").rename(folder / "record.json")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_validation_has_at_least_a_row(text, tmp_path):
    chosen = settings(text, "data.validation=0.001")
    kept, validation = load_texts(chosen, load_tokenizer(chosen.tokenizer), tmp_path)
    assert (len(kept), len(validation)) == (9600 - 64, 64)


def test_what_is_wrong_leaves_the_folder_free(text, tmp_path):
    with pytest.raises(ValueError, match=r"data.train has 4800 tokens, not enough for one row of 100000: set"):
        train(settings(text, "data.context=100000"), tmp_path / "run")
    with pytest.raises(ValueError, match=r"unknown key 'train.learning_rat'; did you mean 'train.learning_rate'"):
        train(settings(text, "train.learning_rat=1"), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
    with pytest.raises(RunError, match="holds no run"):
        read_settings(tmp_path / "run")


def test_a_loss_that_is_not_finite_ends_it_though_nothing_was_logged(run, text, tmp_path):
    folder, _ = run
    net = AutoModelForCausalLM.from_pretrained(folder / "model")
    with torch.no_grad():
        net.lm_head.weight[0, 0] = float("nan")
    net.save_pretrained(tmp_path / "model")
    chosen = settings(text, f"model={{folder: {tmp_path / 'model'}}}", "train.max_steps=2", "train.logging_steps=10")
    with pytest.raises(Diverged, match="diverged by step 2: the mean loss is nan"):
        train(chosen, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_weights_that_cannot_be_gone_on_from_are_named(text, tmp_path):
    with pytest.raises(ValueError, match="none is not a folder with a model"):
        train(settings(text, f"model={{folder: {tmp_path / 'none'}}}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_gpus_without_torchrun_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(training.TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match=r"2 GPUs and one process.* torchrun --nproc-per-node 2 -m varla train-lm"):
        train(settings(text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_processes_that_would_train_separately_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        train(settings(text), tmp_path / "run")
    monkeypatch.setattr(training.processes, "check_started", lambda cpu: None)
    monkeypatch.setattr(training, "TrainingArguments", lambda **_: Mock(n_gpu=0, world_size=1))
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, but 1 would train together"):
        train(settings(text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bfloat16_needs_no_word_about_the_missing_gpu(text, tmp_path):
    chosen = settings(text).to_dict()
    del chosen["train"]["use_cpu"]
    made = training.training_arguments(from_dict({**chosen, "train": {**chosen["train"], "bf16": True}}), tmp_path)
    assert made.bf16


def test_weights_to_go_on_from(run, text, tmp_path):
    folder, _ = run
    chosen = settings(text, f"model={{folder: {folder / 'model'}}}", "train.max_steps=1", "data.validation=0.0")
    record = train(chosen, tmp_path / "run")
    assert losses(tmp_path / "run", 1)[1] < losses(folder)[1]
    assert record["scores"] == {}


def test_rates_of_gates_do_not_decay(tmp_path):
    net = build_model(
        {"preset": "5m", "num_hidden_layers": 1, "mechanisms": "gated-vla"}, 257, load_tokenizer("bytes"), 64
    )
    trainer = training.SavingTrainer(net, TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True))
    decayed = set(trainer.get_decay_parameter_names(net))
    assert all((parameter.dim() > 1) == (name in decayed) for name, parameter in net.named_parameters())
    assert "model.layers.0.mixer.decay.projection.weight" in decayed
