"""`varla sweep`: every combination of a grid, in parallel, as `varla.training.sweep` works it off."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from varla.cli.options import Device, check_device
from varla.cli.output import accuracies, complain, console, say, share, show, table
from varla.runs.outcomes import EXIT_CODES, FAILED, RUNNING, WAITING

if TYPE_CHECKING:
    from varla.training.sweep import Job


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla sweep grid.yaml --out runs/sweep --jobs 4")(sweep)


def sweep(
    grid: Annotated[
        Path, typer.Argument(help="YAML with base: (a run's settings) and grid: (keys with lists).", metavar="GRID")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/GRID.", metavar="FOLDER")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per GPU, or one per core.", metavar="N")
    ] = None,
    device: Device = None,
) -> None:
    """Train every combination of a grid. Run again, the command makes only the missing runs."""
    from varla.training import sweep as sweeps

    check_device(device)
    folder = out or Path("runs") / grid.stem
    found = sweeps.expand(*sweeps.read(grid), folder)
    sweeps.plan(found)
    say(f"sweep    {folder}: {counts(found)}")
    with progress() as view:
        sweeps.run(found, workers=jobs, device=device, watch=view.show)
    show(board(found, f"{folder}: {counts(found)}"))
    failed = [job for job in found if job.state == FAILED]
    for job in failed:
        complain(f"{job.name} failed: {job.note} (all of it in {job.log})")
    if failed:
        raise typer.Exit(EXIT_CODES[FAILED])


def progress(parts: int = 4) -> "Board | Lines":
    """How runs are watched: a table in a terminal; elsewhere a line after each of so many parts of a run."""
    return Board() if console().is_terminal else Lines(parts)


class Lines:
    """For logs and pipes: a line when a run's state changes, and after every quarter of its steps."""

    def __init__(self, parts: int = 4) -> None:
        """A line after each of `parts` equal parts of a run."""
        self.parts = parts
        self.seen: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> "Lines":
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""

    def show(self, jobs: Sequence["Job"]) -> None:
        """Print what is new."""
        for job in jobs:
            state, _ = self.seen.get(job.name, (WAITING, 0))
            if job.skipped or (job.state == state and state != RUNNING):
                continue
            latest = job.latest()
            now = (job.state, self.parts * int(latest.get("step", 0)) // job.config.train.steps)
            if now != self.seen.get(job.name):
                say("  ".join(cell for cell in row(job, latest) if cell))
            self.seen[job.name] = now


class Board:
    """For terminals: one table that is drawn anew."""

    def __init__(self) -> None:
        """The table appears with the first jobs."""
        self.live = Live(console=console(), auto_refresh=False, transient=True)

    def __enter__(self) -> "Board":
        """Take over the lower part of the terminal."""
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.live.stop()

    def show(self, jobs: Sequence["Job"]) -> None:
        """Draw the table: all runs, or where they do not fit, those that run or failed."""
        room = max(1, self.live.console.height - 6)
        shown = list(jobs) if len(jobs) <= room else [job for job in jobs if job.state in (RUNNING, FAILED)]
        self.live.update(board(shown[:room], counts(jobs)), refresh=True)


def counts(jobs: Sequence["Job"]) -> str:
    """How many runs are in which state."""
    states = [f"{job.state} before" if job.skipped else job.state for job in jobs]
    return f"{len(jobs)} runs: " + ", ".join(f"{states.count(each)} {each}" for each in dict.fromkeys(states))


def board(jobs: Sequence["Job"], title: str) -> Table:
    """The jobs as a table."""
    headers = ("run", "state", "step", "loss", "accuracy", "note")
    return table(headers, [row(job, job.latest()) for job in jobs], right=("step", "loss"), title=title)


def row(job: "Job", latest: Mapping[str, Any]) -> tuple[str, ...]:
    """A job as text."""
    step = f"{latest.get('step', 0)}/{job.config.train.steps}"
    loss = f"{latest['loss']:.4f}" if "loss" in latest else ""
    found = ", ".join(f"{name} {share(value)}" for name, value in accuracies(latest).items())
    return job.name, job.state, step, loss, found, job.note
