"""Several processes: they train together, each on a GPU of its own if there are GPUs, or not at all."""

import pytest

from varla.runs import processes


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """That of one process on a machine with two GPUs."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    return monkeypatch


def started(environment, count):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        environment.setenv(name, str(count))
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.setenv(name, "0")


def test_one_process_needs_nothing():
    processes.check_started(cpu=False)
    processes.check_together(1)


def test_processes_that_do_not_train_together_are_refused(environment):
    started(environment, 4)
    processes.check_together(4)
    with pytest.raises(ValueError, match="WORLD_SIZE is 4, but 1 would train together: start them with torchrun"):
        processes.check_together(1)


def test_processes_that_cannot_find_each_other_are_refused(environment):
    started(environment, 2)
    environment.delenv("MASTER_ADDR")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2, but MASTER_ADDR is not set"):
        processes.check_started(cpu=True)
    environment.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE must be a number of processes, got 'two'"):
        processes.check_started(cpu=True)


def test_more_processes_than_gpus_are_refused(environment):
    started(environment, 2)
    processes.check_started(cpu=False)
    started(environment, 4)
    processes.check_started(cpu=True)
    with pytest.raises(ValueError, match=r"4 processes .* has 2 GPUs: torchrun --nproc-per-node 2, or train on"):
        processes.check_started(cpu=False)
