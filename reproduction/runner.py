"""Make the runs of items. A recorded run is not made again, and an interrupted run continues."""

import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from reproduction import records
from reproduction.claims import Item
from reproduction.records import Results
from reproduction.runs import Measure, Preset, Run, Train
from varla.runs import environment
from varla.runs.outcomes import DIVERGED, FAILED, FINISHED, WAITING
from varla.training import Interrupted, sweep
from varla.training.run import Run as RunFolder


@dataclass
class Outcome:
    """How many runs were recorded before, made now, and are left; and which failed, with the reason."""

    results: Results
    before: int = 0
    made: int = 0
    left: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


Watch = Callable[[Sequence[sweep.Job]], None]


def reproduce(
    items: Sequence[Item],
    preset: Preset,
    *,
    reports: Path,
    runs: Path,
    jobs: int | None = None,
    device: str | None = None,
    on: str | None = None,
    minutes: float | None = None,
    watch: Watch = lambda jobs: None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Make the items' runs at this preset that `reports` has no record of. Records are written after every run.

    `runs` is the folder of unfinished runs. After `minutes`, nothing new starts, and running training stops and saves.
    `on`: a Ray cluster for training runs, see `sweep.run`; measurements are made here.
    """
    results = records.load(reports, preset.name)
    outcome = Outcome(results, before=sum(results.get(run) is not None for run in _every(items, preset, results)))
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def keep() -> None:
        for item in items:
            records.save(reports, preset.name, item.name, wanted(item, preset, results), results)

    for _ in range(2):  # the second time for runs that depend on the first ones
        missing = [run for run in _every(items, preset, results) if results.get(run) is None]
        try:
            _measure([run for run in missing if isinstance(run, Measure)], outcome, deadline, keep, say)
            trained = [run for run in missing if isinstance(run, Train)]
            _train(trained, outcome, runs, deadline, watch, workers=jobs, device=device, on=on)
        finally:
            keep()
        if outcome.failed:
            break
    outcome.left = sum(results.get(run) is None for run in _every(items, preset, results)) - len(outcome.failed)
    return outcome


def wanted(item: Item, preset: Preset, results: Results) -> list[Run]:
    """All runs of an item that are known so far."""
    return [*item.runs(preset), *item.then(results, preset)]


def _every(items: Sequence[Item], preset: Preset, results: Results) -> list[Run]:
    """All runs of several items, each once."""
    return list({run.key: run for item in items for run in wanted(item, preset, results)}.values())


def _measure(
    missing: Sequence[Measure],
    outcome: Outcome,
    deadline: float | None,
    keep: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Measure one after the other in this process: most are short, and some take times."""
    surroundings = environment.describe()
    for run in missing:
        if deadline is not None and time.monotonic() > deadline:
            return
        started = time.perf_counter()
        try:
            with nullcontext() if run.timed else one_thread():
                value = run.call()
        except Exception as error:  # the others continue; this one is listed
            outcome.failed.append((run.label, _reason(error)))
            continue
        outcome.results.records[run.key] = {
            "key": run.key,
            "label": run.label,
            "measure": run.recorded_name,
            "arguments": dict(run.arguments),
            "status": FINISHED,
            "value": records.rounded(value),
            "seconds": time.perf_counter() - started,
            "environment": surroundings,
        }
        outcome.made += 1
        say(f"{run.label}: {time.perf_counter() - started:.1f} s")
        keep()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, so that sums have one order and the numbers do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    missing: Sequence[Train],
    outcome: Outcome,
    folder: Path,
    deadline: float | None,
    watch: Watch,
    **where: Any,
) -> None:
    if deadline is not None and time.monotonic() > deadline:
        return
    jobs = [sweep.Job(f"{run.label} {run.key[:4]}", folder / run.key, {}, run.config) for run in missing]
    sweep.plan(jobs)

    def look(active: Sequence[sweep.Job]) -> None:
        watch(active)
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime

    try:
        if any(job.state == WAITING for job in jobs):
            sweep.run(jobs, **where, watch=look)
    except OutOfTime:
        pass
    finally:
        for run, job in zip(missing, jobs, strict=True):
            if job.state in (FINISHED, DIVERGED):
                found = RunFolder(job.folder)
                outcome.results.records[run.key] = records.of_training(run, found.record(), found.metrics())
                outcome.made += 1
                shutil.rmtree(found.checkpoints, ignore_errors=True)
            elif job.state == FAILED:
                outcome.failed.append((run.label, job.note))


class OutOfTime(Interrupted):
    """The time is up."""


def _reason(error: Exception) -> str:
    """The error, with the file and line where it arose."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
