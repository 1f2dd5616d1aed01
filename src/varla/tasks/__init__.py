"""Synthetic tasks: seeded batches of tokens and labels. The layout of a sequence determines every right answer.

A new task is one class and one line in `_KINDS`.
"""

from dataclasses import fields
from typing import Any

from varla.arguments import refuse_unknown
from varla.tasks.copying import Copy, CopyIdentity
from varla.tasks.mqar import MQAR, DisjointMQAR, OutOfDistributionMQAR
from varla.tasks.noisy import NoisyRecall
from varla.tasks.task import IGNORE, Task
from varla.tasks.zoology import ZoologyMQAR

__all__ = ["IGNORE", "Task", "make", "names"]

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
    """The names of all tasks."""
    return tuple(_TASKS)


def make(name: str, **settings: Any) -> Task:
    """Make a task by its name, with the task's defaults for settings that are not given.

    All tasks have `seq_len` (None: the task's default, mostly the shortest possible length) and `vocab_size`. The
    recall tasks have `n`, the number of key-value pairs; `mqar-zoology` has `power`, `mqar-ood` has `keys` ("id" or
    "ood") and `noisy-recall` has `fillers`. Raises ValueError or TypeError for unknown and impossible settings.
    """
    refuse_unknown("task", name, _TASKS)
    kind = _TASKS[name]
    allowed = [field.name for field in fields(kind)]
    for setting in settings:
        refuse_unknown("setting", setting, allowed, where=f" of task {name!r}")
    return kind(**settings)
