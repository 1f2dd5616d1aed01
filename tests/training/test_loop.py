"""Training: it learns, resumes to the same bits, survives kills, and says when it diverges or cannot write."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import starts
from varla.runs.settings import override
from varla.training import Diverged, Interrupted, Run, RunError, build_model, checkpoint, evaluate, from_dict, train
from varla.training.progress import Progress

TINY = {
    "mechanism": "vla",
    "task": {"name": "mqar", "n": 2, "vocab_size": 16},
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "ffn": 16},
    "train": {
        "steps": 30, "batch_size": 4, "log_every": 1, "eval_every": 10, "eval_batches": 1, "eval_batch_size": 8,
        "checkpoint_every": 7, "lr": 1e-3,
    },
}  # fmt: skip


def tiny(*assignments):
    return from_dict(override(TINY, assignments))


def numbers(folder):
    """Everything logged but the clock."""
    return [{k: v for k, v in entry.items() if k != "tokens/s"} for entry in Run(folder).metrics()]


def weights(folder):
    return (checkpoint.latest(Run(folder).checkpoints) / "model.safetensors").read_bytes()


class StopAt(Progress):
    """Sends this process a signal after so many steps."""

    def __init__(self, at, number):
        self.at, self.number = at, number

    def step(self, step, entry):
        if step == self.at:
            os.kill(os.getpid(), self.number)


def test_a_run_leaves_its_folder_in_order(tmp_path):
    record = train(tiny(), tmp_path / "run", device="cpu")
    run = Run(tmp_path / "run")
    assert run.config() == tiny()
    assert json.loads(run.record_file.read_text()) == json.loads(json.dumps(record))
    assert record["status"] == "finished"
    assert record["steps"] == 30
    assert record["config"]["seed"] == 42
    assert record["environment"]["torch"] == torch.__version__
    assert record["parameters"] == sum(p.numel() for p in build_model(tiny()).parameters())
    entries = run.metrics()
    assert [e["step"] for e in entries] == list(range(1, 31))
    assert [e["step"] for e in entries if "eval" in e] == [10, 20, 30]
    assert record["final"] == {"eval": entries[-1]["eval"]}
    assert [p.name for p in checkpoint.all_in(run.checkpoints)] == ["step-00000028", "step-00000030"]
    assert any((run.folder / "tensorboard").iterdir())
    model = build_model(tiny())
    checkpoint.load_weights(checkpoint.latest(run.checkpoints), model)
    assert evaluate(model, tiny(), torch.device("cpu")) == record["final"]


@pytest.mark.parametrize("mechanism", ["vla", "softmax", "deltanet", "gated-vla"])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, mechanism):
    config = tiny(f"mechanism={mechanism}")
    train(config, tmp_path / "whole", device="cpu")
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / f"cut-{number}"
        with pytest.raises(Interrupted, match=r"stopped and saved after step 12.*--resume"):
            train(config, folder, progress=StopAt(12, number), device="cpu")
        assert Run(folder).record()["status"] == "interrupted"
        record = train(config, folder, resume=True, device="cpu")
        assert record["status"] == "finished"
        assert numbers(folder) == numbers(tmp_path / "whole")
        assert weights(folder) == weights(tmp_path / "whole")


def _train_quietly(config, folder, resume):
    train(config, folder, resume=resume, device="cpu")


def saved_step(folder):
    found = checkpoint.latest(Run(folder).checkpoints)
    return int(found.name.split("-")[1]) if found else 0


def test_killed_at_twenty_random_moments_it_loses_only_the_steps_since_the_last_checkpoint(tmp_path):
    settings = ["train.steps=500", "train.eval_every=250", "train.log_every=3"]
    begun = time.monotonic()
    train(tiny(*settings, "train.checkpoint_every=250"), tmp_path / "whole", device="cpu")
    step = (time.monotonic() - begun) / 500
    config = tiny(*settings, "train.checkpoint_every=3")
    folder, choose = tmp_path / "killed", random.Random(0)
    context = multiprocessing.get_context("fork")
    kills, before = 0, 0
    while kills < 20:
        resume = Run(folder).config_file.exists()
        child = context.Process(target=_train_quietly, args=(config, folder, resume))
        child.start()
        if kills % 2:  # a new checkpoint first, however slow the machine; every other time, any moment will do
            begun = time.monotonic()
            while saved_step(folder) <= before and child.is_alive() and time.monotonic() - begun < 60:
                time.sleep(0.002)
        child.join(choose.uniform(1, 10) * step)  # so few that twenty times are not enough for all steps
        assert child.exitcode is None, "it ended before it could be killed twenty times"
        child.kill()
        child.join()
        kills += 1
        saved = saved_step(folder)
        assert saved >= before, "a kill must not lose a checkpoint"
        done = [entry["step"] for entry in Run(folder).metrics()]
        assert not done or done[-1] - saved <= 3
        before = saved
    assert before > 0, "no kill came after a checkpoint: nothing was tested"
    train(config, folder, resume=True, device="cpu")
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"], "nothing is left aside"
    assert numbers(folder) == numbers(tmp_path / "whole")
    assert weights(folder) == weights(tmp_path / "whole")


def spied(monkeypatch):
    """A dictionary that will hold what the first layer of every model then built puts out: (y, state), the newest."""
    from varla.training import loop

    seen = {}

    def build(config):
        model = build_model(config)
        model.blocks[0].mixer.register_forward_hook(lambda module, _, output: seen.update(y=output[0], state=output[1]))
        return model

    monkeypatch.setattr(loop, "build_model", build)
    return seen


@pytest.mark.parametrize("mechanism", ["vla", "softmax", "deltanet", "gated-vla"])
def test_in_bfloat16_it_trains_and_resumes_while_weights_moments_and_states_stay_float32(
    tmp_path, monkeypatch, mechanism
):
    seen = spied(monkeypatch)
    copying = "task={name: copy-identity, vocab_size: 16}"
    settings = [f"mechanism={mechanism}", "preset=tuned", copying, "train.lr=1e-2", "train.batch_size=16"]
    config = tiny(*settings, "train.precision=bf16")
    record = train(config, tmp_path / "whole", device="cpu")
    assert record["status"] == "finished"
    assert seen["y"].dtype == torch.bfloat16, "the layers' products were not taken in bfloat16"
    if mechanism != "softmax":  # its state is a cache of keys and values as they came
        memory = seen["state"].memory.tensors()
        assert {x.dtype for name, x in memory.items() if name not in ("z", "t")} == {torch.float32}
    newest = checkpoint.latest(Run(tmp_path / "whole").checkpoints)
    for name in ("model", "optimizer"):
        tensors = load_file(newest / f"{name}.safetensors")
        assert tensors
        assert {x.dtype for x in tensors.values()} == {torch.float32}, name

    entries = Run(tmp_path / "whole").metrics()
    assert [entry["step"] for entry in entries] == list(range(1, 31))
    losses = [entry["loss"] for entry in entries]
    assert losses[-1] < losses[0] / 2
    train(tiny(*settings), tmp_path / "full", device="cpu")
    precise = [entry["loss"] for entry in Run(tmp_path / "full").metrics()]
    assert losses != precise
    assert losses == pytest.approx(precise, rel=0.02)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", progress=StopAt(12, signal.SIGTERM), device="cpu")
    train(config, tmp_path / "cut", resume=True, device="cpu")
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_a_run_that_is_being_trained_is_left_alone(tmp_path):
    train(tiny(), tmp_path / "run", device="cpu")
    run = Run(tmp_path / "run")
    before = run.record_file.read_bytes()
    with run.lock(), pytest.raises(RunError, match="is being trained by another process"):
        train(tiny(), run.folder, resume=True, device="cpu")
    assert run.record_file.read_bytes() == before


def test_of_many_starts_in_one_folder_one_trains_and_is_left_alone(tmp_path):
    settings = ("train.steps=3", "train.checkpoint_every=1")
    (winner,) = starts.together(lambda i: train(tiny(*settings, f"seed={i}"), tmp_path / "run", device="cpu"), 6)
    assert Run(tmp_path / "run").config().seed == winner
    assert Run(tmp_path / "run").record()["config"]["seed"] == winner
    train(tiny(*settings, f"seed={winner}"), tmp_path / "alone", device="cpu")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "alone")
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")


def test_settings_that_were_edited_are_refused_by_name(tmp_path):
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "run", progress=StopAt(12, signal.SIGTERM), device="cpu")
    run = Run(tmp_path / "run")
    run.config_file.write_text(run.config_file.read_text().replace("lr: 0.001", "lr: 0.01"))
    before = run.record_file.read_bytes(), run.metrics_file.read_bytes()
    with pytest.raises(RunError, match=r"config.yaml was edited .* settings of train.lr \(0.001, now 0.01\)\. Change"):
        train(run.config(), run.folder, resume=True, device="cpu")
    assert (run.record_file.read_bytes(), run.metrics_file.read_bytes()) == before


def test_an_unforeseen_error_is_recorded(tmp_path, monkeypatch):
    def broken(self, entry):
        raise OSError("no space left")

    monkeypatch.setattr(Run, "log", broken)
    with pytest.raises(OSError, match="no space left"):
        train(tiny(), tmp_path / "run", device="cpu")
    assert Run(tmp_path / "run").record()["status"] == "failed"


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(
        Diverged, match=r"diverged at step \d+: the gradient of \S+, .* is not finite \(loss (nan|inf)\)"
    ):
        train(tiny("train.lr=1e30", "train.warmup=0"), tmp_path / "run", device="cpu")
    record = Run(tmp_path / "run").record()
    assert record["status"] == "diverged"
    assert "diverged at step" in record["message"]


def test_a_gradient_that_is_not_finite_is_named(tmp_path, monkeypatch):
    from varla.training import loop

    def spoiled(config):
        model = build_model(config)
        model.blocks[0].mixer.q.weight.register_hook(lambda g: g * float("nan"))
        return model

    monkeypatch.setattr(loop, "build_model", spoiled)
    with pytest.raises(Diverged, match=r"diverged at step 1: the gradient of blocks.0.mixer.q.weight is not finite"):
        train(tiny(), tmp_path / "run", device="cpu")


def test_folders_that_cannot_be_used_are_refused_before_training(tmp_path, monkeypatch):
    train(tiny("train.steps=2"), tmp_path / "run", device="cpu")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="already holds a run: resume it, or choose another"):
        train(tiny(), tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match="was made with other settings of train"):
        train(tiny(), tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(RunError, match="holds no run"):
        train(tiny(), tmp_path / "nothing", resume=True, device="cpu")
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written to"):
        train(tiny(), tmp_path / "file" / "run", device="cpu")


def test_a_disk_without_room_for_the_checkpoints_is_refused_afresh_and_on_resume(tmp_path, monkeypatch):
    def free(amount):
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": amount}))

    config = tiny()
    each = 3 * sum(p.nbytes for p in build_model(config).parameters())  # weights and two moments
    free(3 * each - 1)
    with pytest.raises(RunError, match=f"has {3 * each - 1:,} bytes free; checkpoints need about {3 * each:,}"):
        train(config, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    free(3 * each)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=StopAt(12, signal.SIGTERM), device="cpu")
    run = Run(tmp_path / "run")
    assert len(checkpoint.all_in(run.checkpoints)) == 2
    before = run.record_file.read_bytes(), run.metrics_file.read_bytes()
    free(each - 1)  # two are there already: one more is needed
    with pytest.raises(RunError, match=f"has {each - 1:,} bytes free; checkpoints need about {each:,}"):
        train(config, run.folder, resume=True, device="cpu")
    assert (run.record_file.read_bytes(), run.metrics_file.read_bytes()) == before
    free(each)
    assert train(config, run.folder, resume=True, device="cpu")["status"] == "finished"


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    train(tiny(), tmp_path / "run", device="cpu")
    before = numbers(tmp_path / "run"), weights(tmp_path / "run")
    record = train(tiny(), tmp_path / "run", resume=True, device="cpu")
    assert record["status"] == "finished"
    assert (numbers(tmp_path / "run"), weights(tmp_path / "run")) == before


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, name):
    train(tiny(), tmp_path / "run", device="cpu")
    file = checkpoint.latest(Run(tmp_path / "run").checkpoints) / name
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(ValueError, match=name):
        train(tiny(), tmp_path / "run", resume=True, device="cpu")


def test_it_really_learns(tmp_path):
    """A model of one layer learns to recall two pairs, far above chance, in a few hundred steps."""
    started = time.monotonic()
    config = tiny(
        "train.steps=400", "train.batch_size=32", "train.lr=5e-3", "train.eval_every=400", "preset=tuned",
        "model.d_model=32", "train.eval_batches=8", "train.eval_batch_size=32", "train.checkpoint_every=400",
    )  # fmt: skip
    record = train(config, tmp_path / "run", device="cpu")
    assert record["final"]["eval"] > 0.9, time.monotonic() - started
