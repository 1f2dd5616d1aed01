"""Where a lab run's metrics go beside metrics.jsonl: TensorBoard's files, Weights & Biases."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from varla.runs.reporting import TENSORBOARD, WANDB, finish_wandb, report_names, start_wandb
from varla.runs.writing import naming
from varla.training.config import RunConfig


class Report(Protocol):
    """Gets what metrics.jsonl gets."""

    def log(self, entry: Mapping[str, Any]) -> None:
        """What was logged after a step, with the step."""

    def close(self, finished: bool) -> None:
        """The run is over, or was stopped."""


def open_reports(config: RunConfig, folder: Path, done: int) -> Iterator[Report]:
    """The reports that the settings ask for, of a run that has done so many steps."""
    wanted = report_names("train.report_to", config.train.report_to)
    if WANDB in wanted:
        yield WandB(start_wandb(folder, config.to_dict()))
    if TENSORBOARD in wanted:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # metrics.jsonl has everything anyway
            return
        yield TensorBoard(folder / "tensorboard", SummaryWriter, done)


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, folder: Path, kind: Any, done: int):
        """`kind` is TensorBoard's writer. What it wrote after `done` steps is purged: it is logged again."""
        self.folder = folder
        self.writer = kind(str(folder), purge_step=done + 1)

    def log(self, entry: Mapping[str, Any]) -> None:
        """See Report."""
        with naming(self.folder):
            for key, value in entry.items():
                self.writer.add_scalar(key, value, entry["step"])

    def close(self, finished: bool) -> None:
        """See Report."""
        with naming(self.folder):
            self.writer.close()


class WandB:
    """A run of wandb's. If a resumed run repeats steps, wandb keeps what it got first: the numbers are the same."""

    def __init__(self, run: Any):
        self.run = run

    def log(self, entry: Mapping[str, Any]) -> None:
        """See Report."""
        self.run.log(dict(entry), step=entry["step"])

    def close(self, finished: bool) -> None:
        """See Report."""
        finish_wandb(self.run, finished)
