"""The lab's training: one loop, one folder a run, checkpoints that survive a kill, sweeps."""

from varla.runs.folder import RunError
from varla.runs.outcomes import Diverged, Interrupted
from varla.runs.settings import load, override
from varla.training.config import RunConfig, TrainConfig, complete, from_dict
from varla.training.loop import build_model, build_task, evaluate, train, trained_model
from varla.training.run import Run

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
    "trained_model",
]
