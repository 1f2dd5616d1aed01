"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere, nothing if asked."""

import sys
import time
from typing import Any, Protocol


class Progress(Protocol):
    """Told of every step's place and every log entry."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """A run begins (or goes on) at `step` of `steps`."""

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """`step` steps are done; `entry` is what was logged there, if anything was."""

    def end(self) -> None:
        """The run is over."""


class Silent:
    """Shows nothing."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """See Progress."""

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """See Progress."""

    def end(self) -> None:
        """See Progress."""


class Lines:
    """A line for every tenth of the way, with the time left; for logs and pipes."""

    def __init__(self) -> None:
        """Nothing is printed yet."""
        self.title, self.steps, self.first, self.started, self.tenth = "", 0, 0, 0.0, -1
        self.latest: dict[str, Any] = {}

    def begin(self, title: str, step: int, steps: int) -> None:
        """See Progress."""
        self.title, self.steps, self.first, self.started, self.tenth = title, steps, step, time.monotonic(), -1

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """See Progress."""
        self.latest.update(entry or {})
        tenth = 10 * step // self.steps
        if entry is None or tenth == self.tenth:
            return
        self.tenth = tenth
        passed = time.monotonic() - self.started
        left = passed / max(1, step - self.first) * (self.steps - step)
        print(f"{self.title}  step {step}/{self.steps}  {summary(self.latest)}  {left:.0f} s left", flush=True)

    def end(self) -> None:
        """See Progress."""


class Bar:
    """A live progress bar (Rich)."""

    def __init__(self) -> None:
        """The bar appears with `begin`."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[summary]}"),
            TimeRemainingColumn(),
        )
        self.latest: dict[str, Any] = {}

    def begin(self, title: str, step: int, steps: int) -> None:
        """See Progress."""
        self.latest = {}
        self._bar.start()
        self._task = self._bar.add_task(title, total=steps, completed=step, summary="")

    def step(self, step: int, entry: dict[str, Any] | None) -> None:
        """See Progress."""
        self.latest.update(entry or {})
        self._bar.update(self._task, completed=step, summary=summary(self.latest))

    def end(self) -> None:
        """See Progress."""
        self._bar.stop()


def choose(quiet: bool = False) -> Progress:
    """A bar in a terminal, lines elsewhere."""
    if quiet:
        return Silent()
    return Bar() if sys.stdout.isatty() else Lines()


def summary(entry: dict[str, Any]) -> str:
    """The few numbers that fit on a line."""
    parts = []
    if "loss" in entry:
        parts.append(f"loss {entry['loss']:.3f}")
    if "accuracy" in entry:
        parts.append(f"acc {entry['accuracy']:.3f}")
    parts += [f"{key} {value:.3f}" for key, value in entry.items() if key.startswith("eval/")]
    if "tokens/s" in entry:
        parts.append(f"{entry['tokens/s']:,.0f} tok/s")
    return "  ".join(parts)
