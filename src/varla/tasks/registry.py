"""The list of tasks and the one function that makes them. A new task is one class and one line here."""

from dataclasses import fields
from typing import Any

from varla.arguments import refuse_unknown
from varla.tasks.copying import Copy, CopyIdentity
from varla.tasks.mqar import MQAR, DisjointMQAR, OutOfDistributionMQAR
from varla.tasks.noisy import NoisyRecall
from varla.tasks.task import Task
from varla.tasks.zoology import ZoologyMQAR

_KINDS: tuple[type[Task], ...] = (
    MQAR,
    ZoologyMQAR,
    DisjointMQAR,
    OutOfDistributionMQAR,
    Copy,
    CopyIdentity,
    NoisyRecall,
)
_TASKS: dict[str, type[Task]] = {kind.name: kind for kind in _KINDS}


def names() -> tuple[str, ...]:
    """Give the names of all tasks."""
    return tuple(_TASKS)


def make(name: str, **settings: Any) -> Task:
    """Make a task by its name. What is not set takes the task's default.

    All tasks have `seq_len` (None: the shortest possible, or a default of the task's own) and `vocab_size`; the
    recall tasks have `n`, the number of key-value pairs; `mqar-zoology` has `power`, `mqar-ood` has `keys` ("id" or
    "ood") and `noisy-recall` has `fillers`. Raises ValueError or TypeError for what is unknown or impossible.
    """
    refuse_unknown("task", name, _TASKS)
    kind = _TASKS[name]
    allowed = [field.name for field in fields(kind)]
    for setting in settings:
        refuse_unknown("setting", setting, allowed, where=f" of task {name!r}")
    return kind(**settings)
