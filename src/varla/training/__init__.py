"""Training: one loop, one run folder, checkpoints that survive a kill."""

from varla.training.config import RunConfig, TrainConfig, complete, from_dict, load, override
from varla.training.loop import Interrupted, build_model, build_task, evaluate, train
from varla.training.run import Run, RunError
from varla.training.update import Diverged

__all__ = [
    "Diverged",
    "Interrupted",
    "Run",
    "RunConfig",
    "RunError",
    "TrainConfig",
    "build_model",
    "build_task",
    "complete",
    "evaluate",
    "from_dict",
    "load",
    "override",
    "train",
]
