"""Workers: one process trains many runs, to the same numbers; a new one replaces one that died or failed."""

import os
import signal
import time

from tests.training.test_loop import numbers, tiny
from tests.warm import warm  # noqa: F401 - a fixture
from varla.training import train
from varla.training.sweep import environment
from varla.training.workers import Worker


def give(worker, tmp_path, name, *changes):
    worker.begin(tiny(*changes), tmp_path / name, tmp_path / "logs" / f"{name}.log", resume=False)


def test_one_process_makes_many_runs_as_if_each_were_alone(tmp_path, warm):  # noqa: F811
    worker = Worker(environment(0, 1, []), "cpu")
    try:
        give(worker, tmp_path, "first", "seed=1")
        assert worker.wait(120) == 0
        process = worker.process
        give(worker, tmp_path, "second")
        assert worker.wait(120) == 0
        assert worker.process is process
    finally:
        worker.dismiss()
    train(tiny(), tmp_path / "alone", device="cpu")
    assert numbers(tmp_path / "second") == numbers(tmp_path / "alone")


def test_after_a_failure_and_after_a_death_there_is_a_new_process(tmp_path):
    worker = Worker(environment(0, 1, []), "cpu")
    try:
        give(worker, tmp_path, "bad", "model.n_heads=3")
        assert worker.wait(120) == 1
        assert "n_heads must divide" in (tmp_path / "logs/bad.log").read_text()
        give(worker, tmp_path, "killed", "train.steps=100000")
        os.kill(worker.process.pid, signal.SIGKILL)
        assert worker.wait(120) == -signal.SIGKILL
        give(worker, tmp_path, "good")
        assert worker.wait(120) == 0
    finally:
        worker.dismiss()


def test_asked_to_save_it_saves_and_so_it_does_when_its_sweep_was_killed(tmp_path):
    """An orphan would go on for hours, and a second sweep would find its folder locked."""
    worker = Worker(environment(0, 1, []), "cpu")
    try:
        give(worker, tmp_path, "long", "train.steps=100000")
        wait_for_a_checkpoint(worker, tmp_path / "long")
        worker.ask_to_save()
        assert worker.wait(120) == 130
        assert "stopped and saved after step" in (tmp_path / "logs/long.log").read_text()
        give(worker, tmp_path, "orphan", "train.steps=100000")
        wait_for_a_checkpoint(worker, tmp_path / "orphan")
        worker.process.stdin.close()  # as the system closes it when the sweep is killed
        worker.process.wait(60)
        assert "stopped and saved after step" in (tmp_path / "logs/orphan.log").read_text()
    finally:
        worker.dismiss()


def wait_for_a_checkpoint(worker, folder):
    deadline = time.monotonic() + 120
    while not (folder / "checkpoints").is_dir() and time.monotonic() < deadline:
        assert worker.ended() is None
        time.sleep(0.05)


def test_a_worker_that_hangs_up_is_replaced(tmp_path):
    worker = Worker(environment(0, 1, []), "cpu")
    try:
        give(worker, tmp_path, "first")
        assert worker.wait(120) == 0
        worker.process.kill()
        worker.process.wait()
        give(worker, tmp_path, "second")
        assert worker.wait(120) == 0
    finally:
        worker.dismiss()
