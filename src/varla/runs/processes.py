"""Several processes in one run, as torchrun and `accelerate launch` start them."""

import os

import torch


def on_cpu() -> bool:
    """Whether this machine has no accelerator. Accelerate must be told: else its processes train separately."""
    return not torch.accelerator.is_available()


def check_gpus() -> None:
    """Refuse more processes than GPUs: two on one GPU would wait for each other forever, or fail at random."""
    started, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if started > there:
        raise ValueError(
            f"{started} processes were started on this machine, which has {there} GPUs: torchrun --nproc-per-node "
            f"{max(1, there)}, or train on the CPU"
        )


def check_together(found: int) -> None:
    """Refuse to train unless all `WORLD_SIZE` processes train together: `found` is how many do."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if found != started:
        raise ValueError(
            f"WORLD_SIZE says that {started} processes were started, but {found} would train together: start them "
            "with torchrun or `accelerate launch`, or unset WORLD_SIZE for a run of one process"
        )
