"""Sweeps: grids expand to runs, workers run in processes, nothing is done twice and nothing is dropped."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from tests.warm import warm  # noqa: F401 - a fixture
from varla.training import Interrupted, Run, RunError, from_dict, train
from varla.training import sweep as sweeps
from varla.training.progress import Progress
from varla.training.sweep import expand, plan, read, run
from varla.training.workers import Lost, work

BASE = {
    "task": {"name": "mqar", "n": 2},
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "ffn": 16},
    "train": {"steps": 4, "batch_size": 4, "eval_batches": 1, "eval_batch_size": 4, "log_every": 1},
}


class StopsAfter(Progress):
    """Asks the run to stop, as Ctrl-C would, after some steps."""

    def __init__(self, steps):
        self.steps = steps

    def step(self, step, entry):
        if step == self.steps:
            os.kill(os.getpid(), signal.SIGTERM)


def names(jobs):
    return [job.name for job in jobs]


def test_every_combination_in_order(tmp_path):
    jobs = expand(BASE, {"mechanism": ["vla", "linear"], "task.n": [1, 2], "seed": [3]}, tmp_path)
    assert names(jobs) == ["vla-n1-seed3", "vla-n2-seed3", "linear-n1-seed3", "linear-n2-seed3"]
    last = jobs[-1]
    assert (last.config.mechanism, last.config.task["n"], last.config.seed) == ("linear", 2, 3)
    assert last.config.train == from_dict(BASE).train
    assert last.folder == tmp_path / "linear-n2-seed3"


def test_rates_as_people_write_them_are_numbers(tmp_path):
    text = yaml.safe_dump({"base": BASE}) + "grid: {train.lr: [1e-3, 0.01, 3]}\n"
    (tmp_path / "grid.yaml").write_text(text)
    jobs = expand(*read(tmp_path / "grid.yaml"), tmp_path)
    assert [job.config.train.lr for job in jobs] == [1e-3, 0.01, 3.0]
    assert names(jobs) == ["lr0.001", "lr0.01", "lr3"]


def test_names_are_safe_and_unambiguous(tmp_path):
    jobs = expand({}, {"layer.conv": [None, 4], "task.name": ["copy"], "layer.output_norm": ["rms"]}, tmp_path)
    assert names(jobs) == ["convnull-copy-output_normrms", "conv4-copy-output_normrms"]
    assert sweeps._name({"task.n": 1, "model.n": 2, "x": "a/../b c"}) == "task.n1-model.n2-xa_.._b_c"


def test_the_default_task_is_completed_or_replaced():
    assert [job.config.task for job in expand({}, {"task.n": [4]}, Path())] == [{"name": "mqar", "n": 4}]
    assert [job.config.task for job in expand({}, {"task.name": ["copy"]}, Path())] == [{"name": "copy"}]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"seed": [1, 1]}, "lists 1 twice"),
        ({"seed": [0, 2, 0]}, "lists 0 twice"),
        ({"seed": []}, "grid.seed .* at least one"),
        ({"seed": "abc"}, "grid.seed .* list"),
        ({}, "needs a grid"),
        ([1], "needs a grid"),
    ],
)
def test_bad_grids_are_refused(tmp_path, grid, message):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"grid": grid}))
    with pytest.raises((ValueError, TypeError), match=message):
        read(tmp_path / "grid.yaml")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"train.stepz": [1]}, "run stepz1: unknown key 'train.stepz'; did you mean 'train.steps'"),
        ({"train.steps": [1.5]}, "run steps1.5: train.steps must be int"),
        ({"mechanism": ["vla", "vlb"]}, "run vlb: unknown mechanism"),
        ({"task.n": [500]}, "run n500: n must be at most"),
        ({"preset": ["mine"]}, "run mine: unknown preset"),
        ({"model.positions": ["no"]}, "run positionsno: positions must be one of"),
        ({"seed.x": [1]}, "seed"),
        ({"train.lr": [1e-3, 1e-3]}, "same folder name: lr0.001"),
    ],
)
def test_combinations_that_cannot_work_are_refused_by_name(tmp_path, grid, message):
    with pytest.raises((ValueError, TypeError), match=message):
        expand({**BASE, "seed": 1}, grid, tmp_path)


def test_workers_share_the_cores_and_the_gpus(monkeypatch):
    monkeypatch.setattr(sweeps, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = [sweeps.environment(slot, 3, ["0", "GPU-b"]) for slot in range(3)]
    assert [each["OMP_NUM_THREADS"] for each in found] == ["2", "2", "2"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["0", "GPU-b", "0"]
    assert sweeps.environment(0, 16, [])["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert sweeps.environment(0, 1, [])["OMP_NUM_THREADS"] == "3"


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert sweeps.gpus(None) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert sweeps.gpus("cuda") == ["3", "5"]
    assert sweeps.gpus("cpu") == []


def test_done_is_skipped_interrupted_is_resumed_failed_is_kept(tmp_path, warm):  # noqa: F811
    impossible = {**BASE, "model": {**BASE["model"], "max_len": 3}}
    jobs = expand(BASE, {"seed": [1, 2]}, tmp_path) + expand(impossible, {"seed": [3]}, tmp_path)
    done, broken, bad = jobs
    train(done.config, done.folder, device="cpu")
    record = (done.folder / "record.json").read_text()
    with pytest.raises(Interrupted):
        train(broken.config, broken.folder, device="cpu", progress=StopsAfter(2))
    first_steps = Run(broken.folder).metrics()
    assert len(first_steps) == 2

    plan(jobs)
    assert [(job.state, job.skipped) for job in jobs] == [("finished", True), ("waiting", False), ("waiting", False)]
    assert [job.resume for job in jobs] == [False, True, False]
    seen = []
    run(jobs, workers=2, device="cpu", watch=lambda jobs: seen.append([job.state for job in jobs]))
    assert ["finished", "running", "running"] in seen
    assert [job.state for job in jobs] == ["finished", "finished", "failed"]
    assert (done.folder / "record.json").read_text() == record
    assert "model.max_len must be at least 7" in bad.note
    assert "Traceback" in bad.log.read_text()

    after = Run(broken.folder)
    assert after.record()["status"] == "finished"
    assert after.metrics()[:2] == first_steps
    train(broken.config, tmp_path / "whole", device="cpu")
    assert losses(after) == losses(Run(tmp_path / "whole"))


def losses(run):
    return [entry["loss"] for entry in run.metrics()]


def test_diverged_counts_as_done(tmp_path, warm):  # noqa: F811
    jobs = expand(BASE, {"train.lr": [1e30]}, tmp_path)
    run(jobs, device="cpu")
    assert jobs[0].state == "diverged"
    assert "diverged at step 2" in jobs[0].note
    again = expand(BASE, {"train.lr": [1e30]}, tmp_path)
    plan(again)
    assert (again[0].state, again[0].skipped, again[0].note) == ("diverged", True, jobs[0].note)
    run(again, device="cpu")


def test_folder_with_other_settings_is_refused(tmp_path):
    jobs = expand(BASE, {"seed": [1]}, tmp_path)
    begun = Run(jobs[0].folder)
    with begun.lock():
        begun.begin(jobs[0].config, 0)
    with pytest.raises(RunError, match="other settings of preset"):
        plan(expand({**BASE, "preset": "tuned"}, {"seed": [1]}, tmp_path))


def test_worker_that_is_killed_has_failed(tmp_path):
    job = expand(BASE, {"seed": [1]}, tmp_path)[0]
    sweeps._settle(job, -9, stopping=False)
    assert (job.state, job.note) == ("failed", "killed by SIGKILL")


@pytest.mark.parametrize("how", ["Ctrl-C in a terminal, which reaches all", "SIGTERM to the sweep alone"])
def test_when_stopped_the_workers_save(tmp_path, how):
    slow = {**BASE, "train": {**BASE["train"], "steps": 1_000_000}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"base": slow, "grid": {"seed": [1, 2]}}))
    command = [sys.executable, "-m", "varla.cli", "sweep", tmp_path / "grid.yaml", "--out", tmp_path / "out"]
    process = subprocess.Popen(
        [*command, "--jobs", "1", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begun = Run(tmp_path / "out" / "seed1")
    try:
        deadline = time.monotonic() + 60
        while len(begun.metrics()) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if how.startswith("Ctrl-C"):
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "seed1  interrupted" in stdout
    assert "0 of 2 runs done; resume with the same command" in stderr
    assert begun.record()["status"] == "interrupted"
    assert begun.record()["steps"] == begun.metrics()[-1]["step"]
    assert not (tmp_path / "out" / "seed2").exists()


class Losing:
    """Stands for a worker on a cluster: its first runs are lost with their nodes, others train here at once."""

    def __init__(self, losses):
        self.losses, self.given, self.dismissed = losses, [], 0

    def begin(self, config, folder, log, *, resume, taken_over):
        self.given.append((folder.name, taken_over))
        self.code = None if len(self.given) <= self.losses else work(
            {"config": config.to_dict(), "folder": folder, "resume": resume, "device": "cpu"}
        )  # fmt: skip

    def ended(self):
        if self.code is None:
            raise Lost("its node died")
        return self.code

    def dismiss(self):
        self.dismissed += 1


@pytest.fixture
def losing(monkeypatch):
    """A cluster of one worker, which loses its first `losses` runs."""

    def use(losses):
        worker = Losing(losses)
        monkeypatch.setattr(sweeps, "_crew", lambda *_: nullcontext([worker]))
        return worker

    return use


def test_a_run_whose_worker_is_lost_is_given_to_another(tmp_path, losing):
    worker = losing(2)
    jobs = expand(BASE, {"seed": [1, 2]}, tmp_path)
    run(jobs, on="ray", pause=0)
    assert [(job.state, job.losses, job.note) for job in jobs] == [("finished", 1, "")] * 2
    assert worker.given == [("seed1", False), ("seed2", False), ("seed1", True), ("seed2", True)]
    assert worker.dismissed


def test_a_run_that_loses_every_worker_has_failed(tmp_path, losing):
    losing(100)
    (job,) = expand(BASE, {"seed": [1]}, tmp_path)
    run([job], on="ray", pause=0)
    assert (job.state, job.note) == ("failed", "lost 6 workers; the last: its node died")


def test_without_ray_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    jobs = expand(BASE, {"seed": [1]}, tmp_path)
    with pytest.raises(ValueError, match=r'--on ray: it needs Ray: pip install "varla\[ray\]"'):
        run(jobs, on="ray")
    assert not (tmp_path / "seed1").exists()
