"""Synthetic tasks: seeded batches of tokens and labels whose right answers follow from the layout alone."""

from varla.tasks.registry import make, names
from varla.tasks.task import IGNORE, Task

__all__ = ["IGNORE", "Task", "make", "names"]
