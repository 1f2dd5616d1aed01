"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from typing import Any

from varla.runs.metrics import is_eval


class Progress:
    """Is told of every step. This one shows nothing; others inherit from it."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """The run begins, or resumes, at `step` of `steps`."""

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """`step` steps are done; `entry` is what was logged there, if anything was."""

    def end(self) -> None:
        """The run is over."""


class Lines(Progress):
    """A line for every tenth of the run, with the time left; for logs and pipes."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """Start the clock."""
        self.title, self.steps, self.first, self.started, self.tenth = title, steps, step, time.monotonic(), -1

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """Print a line if a tenth is done: what was logged at this step, not before."""
        tenth = 10 * step // self.steps
        if entry is None or tenth == self.tenth:
            return
        self.tenth = tenth
        passed = time.monotonic() - self.started
        left = passed / max(1, step - self.first) * (self.steps - step)
        print(f"{self.title}  step {step}/{self.steps}  {summary(entry)}  {left:.0f} s left", flush=True)


class Bar(Progress):
    """A live progress bar (Rich)."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """Show the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        # Where the terminal is narrow, the bar gives way, not the numbers.
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[summary]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        self.latest: dict[str, Any] = {}
        self._bar.start()
        self._task = self._bar.add_task(title, total=steps, completed=step, summary="")

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """Move the bar."""
        self.latest.update(entry or {})
        self._bar.update(self._task, completed=step, summary=summary(self.latest))

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def choose(quiet: bool = False) -> Progress:
    """A bar in a terminal, lines elsewhere, nothing if `quiet`."""
    if quiet:
        return Progress()
    return Bar() if sys.stdout.isatty() else Lines()


def summary(entry: dict[str, Any]) -> str:
    """The few numbers that fit on a line."""
    parts = []
    if "loss" in entry:
        parts.append(f"loss {entry['loss']:.3f}")
    if "accuracy" in entry:
        parts.append(f"acc {entry['accuracy']:.3f}")
    parts += [f"{key} {value:.3f}" for key, value in entry.items() if is_eval(key)]
    if "tokens/s" in entry:
        parts.append(f"{entry['tokens/s']:,.0f} tok/s")
    return "  ".join(parts)
