"""Several processes in one run, as torchrun and `accelerate launch` start them: they train together or not at all."""

import os

import torch

_MEETING = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # how the processes of a run find each other
_HINT = "start them with torchrun or `accelerate launch`, or unset WORLD_SIZE for a run of one process"


def on_cpu() -> bool:
    """Whether this machine has no accelerator. Accelerate must be told: else its processes train separately."""
    return not torch.accelerator.is_available()


def check_started(*, cpu: bool) -> None:
    """Refuse processes that cannot find each other and, unless they train on the CPU, more of them than GPUs."""
    missing = [name for name in _MEETING if name not in os.environ]
    if _world() > 1 and missing:
        raise ValueError(f"WORLD_SIZE is {_world()}, but {', '.join(missing)} is not set: {_HINT}")
    local, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if not cpu and gpus and local > gpus:
        raise ValueError(
            f"{local} processes were started on this machine, which has {gpus} GPUs: torchrun --nproc-per-node {gpus}, "
            "or train on the CPU"
        )


def check_together(found: int) -> None:
    """Refuse to train unless all processes that were started train together: `found` is how many do."""
    if found < _world():
        raise ValueError(f"WORLD_SIZE is {_world()}, but {found} would train together: {_HINT}")


def _world() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal():
        raise ValueError(f"WORLD_SIZE must be a number of processes, got {text!r}")
    return int(text)
