"""`varla sweep`: train every combination of a grid, in parallel (`varla.training.sweep`), and show the progress."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live

from varla.cli.options import Device, On, check_device, place
from varla.cli.output import Grid, accuracies, complain, console, say, share, show, table
from varla.runs.outcomes import EXIT_CODES, FAILED, RUNNING, WAITING

if TYPE_CHECKING:
    from varla.training.sweep import Job

# A grid, for the help.
EXAMPLE = (
    'echo "{grid: {mechanism: [vla, linear], task.n: [8, 16], seed: [1, 2]}}" > grid.yaml',
    'echo "{base: {train: {steps: 1000}}, grid: {train.lr: [1e-3, 3e-4]}}" > grid.yaml',
)


def sweep(
    grid: Annotated[
        Path,
        typer.Argument(
            help="YAML with grid: (keys, each with a list of values) and perhaps base: (settings that all runs share).",
            metavar="GRID",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs. Default: runs/GRID.", metavar="FOLDER", parser=place)
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per GPU, or one per core.", metavar="N")
    ] = None,
    device: Device = None,
    on: On = None,
) -> None:
    """Train every combination of a grid. Run again, the command makes only the missing runs."""
    from varla.training import sweep as sweeps

    check_device(device, on)
    folder = out or Path("runs") / grid.stem
    found = sweeps.expand(*sweeps.read(grid), folder)
    sweeps.plan(found)
    say(f"sweep    {folder}: {counts(found)}")
    with progress() as watch:
        sweeps.run(found, workers=jobs, device=device, on=on, watch=watch)
    show(board(found, f"{folder}: {counts(found)}"))
    failed = [job for job in found if job.state == FAILED]
    for job in failed:
        complain(f"{job.name} failed: {job.note} (all of it in {job.log})")
    if failed:
        raise typer.Exit(EXIT_CODES[FAILED])


@contextmanager
def progress(parts: int = 4) -> Iterator[Callable[[Sequence["Job"]], None]]:
    """A function that shows the jobs: a live table in a terminal; elsewhere lines, `parts` of them for each run."""
    if not console().is_terminal:
        yield JobLines(parts).show
        return
    with Live(console=console(), auto_refresh=False, transient=True) as live:
        yield lambda jobs: live.update(fitting_board(jobs, live.console.height), refresh=True)


class JobLines:
    """For logs and pipes: a line when a run's state changes, and after each of `parts` equal parts of its steps."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.seen: dict[str, tuple[str, int]] = {}

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


def fitting_board(jobs: Sequence["Job"], height: int) -> Grid:
    """All jobs as a table; if they are more than fit, those that run or failed."""
    room = max(1, height - 6)
    shown = list(jobs) if len(jobs) <= room else [job for job in jobs if job.state in (RUNNING, FAILED)]
    return board(shown[:room], counts(jobs))


def counts(jobs: Sequence["Job"]) -> str:
    """How many runs are in which state."""
    states = [f"{job.state} before" if job.skipped else job.state for job in jobs]
    return f"{len(jobs)} runs: " + ", ".join(f"{states.count(each)} {each}" for each in dict.fromkeys(states))


def board(jobs: Sequence["Job"], title: str) -> Grid:
    """The jobs as a table."""
    headers = ("run", "state", "step", "loss", "accuracy", "note")
    return table(headers, [row(job, job.latest()) for job in jobs], right=("step", "loss"), title=title)


def row(job: "Job", latest: Mapping[str, Any]) -> tuple[str, ...]:
    """A job as text."""
    step = f"{latest.get('step', 0)}/{job.config.train.steps}"
    loss = f"{latest['loss']:.4f}" if "loss" in latest else ""
    found = ", ".join(f"{name} {share(value)}" for name, value in accuracies(latest).items())
    return job.name, job.state, step, loss, found, job.note
