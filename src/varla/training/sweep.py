"""Many runs from one grid, in parallel processes. Finished runs are skipped, interrupted ones resumed.

base:                      # a run's settings
  train: {steps: 3000}
grid:                      # every combination of these is one run
  mechanism: [vla, deltanet]
  task.n: [8, 16]
  seed: [1, 2, 3]
"""

import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from varla.arguments import refuse_unknown
from varla.backbone import backbone_config
from varla.layers import MECHANISMS, build
from varla.runs.metrics import newest
from varla.runs.outcomes import DIVERGED, EXIT_CODES, FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, Interrupted, Stop
from varla.runs.settings import load, override
from varla.training.config import RunConfig, complete, from_dict
from varla.training.loop import build_task
from varla.training.run import Run, name_part
from varla.training.workers import Lost, Worker

if TYPE_CHECKING:
    from varla.training.on_ray import RayWorker

# Keys whose value needs no name beside it: vla-n8, not mechanismvla-n8.
_TELLING = ("mechanism", "preset", "task.name")
_PATIENCE = 120.0  # seconds that a stopped worker has to save
_LOSSES = 5  # a run may lose so many workers before it has failed


@dataclass
class Job:
    """One run of a sweep and its state. `note` says what went wrong."""

    name: str
    folder: Path
    values: Mapping[str, Any]
    config: RunConfig
    state: str = WAITING
    resume: bool = False
    skipped: bool = False
    note: str = ""
    losses: int = 0  # of workers with their nodes

    @property
    def log(self) -> Path:
        """What the worker printed. It lies beside the runs, so that every folder of a sweep is a run."""
        return self.folder.parent / ".logs" / f"{self.folder.name}.log"

    def latest(self) -> dict[str, Any]:
        """The newest value of every metric, by name."""
        return newest(Run(self.folder).metrics())


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(base, grid) of a sweep's YAML file."""
    values = load(path)
    for key in values:
        refuse_unknown(f"key in {path}", key, ("base", "grid"))
    base, grid = values.get("base") or {}, values.get("grid")
    if not isinstance(base, dict):
        raise TypeError(f"base in {path} must hold a run's settings, got {base!r}")
    if not isinstance(grid, dict) or not grid:
        raise ValueError(f"{path} needs a grid: keys, each with a list of values, such as `seed: [1, 2, 3]`")
    for key, choices in grid.items():
        if not isinstance(key, str):
            raise TypeError(f"grid in {path} must have names as keys, got {key!r}")
        if not isinstance(choices, list) or not choices:
            raise TypeError(f"grid.{key} in {path} must be a list of at least one value, got {choices!r}")
        if repeated := [x for i, x in enumerate(choices) if x in choices[:i]]:
            raise ValueError(f"grid.{key} in {path} lists {repeated[0]!r} twice")
    return base, grid


def expand(base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], folder: Path) -> list[Job]:
    """Every combination of the grid's values as a job. Errors name the combination that cannot work."""
    jobs: list[Job] = []
    start = complete(base, grid)
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        name = _name(values)
        try:
            # JSON is YAML. As text, a rate written 1e-3 becomes a number, as it does for --set.
            config = from_dict(override(start, [f"{key}={json.dumps(x, default=str)}" for key, x in values.items()]))
            _check(config)
        except (ValueError, TypeError) as error:
            raise type(error)(f"run {name}: {error}") from error
        jobs.append(Job(name, folder / name, values, config))
    names = [job.name for job in jobs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"different values of the grid give the same folder name: {', '.join(sorted(repeated))}")
    return jobs


def plan(jobs: Iterable[Job]) -> None:
    """Compare with the folders: finished and diverged runs will be skipped, others that have begun resumed.

    Raises RunError if a folder holds a run with other settings.
    """
    for job in jobs:
        run = Run(job.folder)
        if not run.config_file.exists():
            continue
        run.reopen(job.config)
        record = run.record()
        if record.get("status") in (FINISHED, DIVERGED):
            job.state, job.note, job.skipped = record["status"], record.get("message") or "", True
        else:
            job.resume = True


def cores() -> int:
    """Processor cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus(device: str | None) -> list[str]:
    """GPUs to spread the workers over, by their names in CUDA_VISIBLE_DEVICES."""
    if device == "cpu" or not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def environment(slot: int, workers: int, devices: Sequence[str]) -> dict[str, str]:
    """Environment of the worker in `slot`: its GPU and its share of the cores, capped by OMP_NUM_THREADS if set."""
    threads = max(1, cores() // workers)
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        threads = min(threads, int(allowed))
    found = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if devices:
        found["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return found


def run(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    device: str | None = None,
    on: str | None = None,
    watch: Callable[[Sequence[Job]], None] = lambda jobs: None,
    pause: float = 0.25,
) -> None:
    """Run all waiting jobs, `workers` at a time (None: one per GPU, or one per core), and set the state of each.

    `on`: a Ray cluster (`varla.training.on_ray.Cluster`); None: this machine. A run whose node dies is continued on
    another. `watch` is called every `pause` seconds. On Ctrl-C or SIGTERM the workers save, then Interrupted is raised.
    """
    waiting = deque(job for job in jobs if job.state == WAITING)
    active: dict[Worker | RayWorker, Job] = {}
    with _crew(len(waiting), workers, device, on) as crew, Stop() as stop:  # Ray has handlers of its own: before ours
        try:
            while (waiting or active) and not stop.wanted:
                for worker in crew:
                    if worker not in active and waiting:
                        job = waiting.popleft()
                        worker.begin(job.config, job.folder, job.log, resume=job.resume, taken_over=job.losses > 0)
                        job.state, job.note = RUNNING, ""
                        active[worker] = job
                    elif worker not in active:
                        worker.dismiss()  # what it holds may be what another one waits for
                time.sleep(pause)
                for worker, job in list(active.items()):
                    try:
                        if (code := worker.ended()) is None:
                            continue
                        _settle(job, code, stopping=stop.wanted)
                    except Lost as loss:
                        _lose(job, loss)
                        if job.state == WAITING:
                            waiting.append(job)
                    del active[worker]
                watch(jobs)
        finally:
            try:
                _stop(active)
            finally:
                for worker in crew:
                    worker.dismiss()
            watch(jobs)
    if stop.wanted and any(job.state in (WAITING, INTERRUPTED) for job in jobs):
        done = sum(job.state in (FINISHED, DIVERGED) for job in jobs)
        raise Interrupted(f"stopped and saved with {done} of {len(jobs)} runs done; resume with the same command")


@contextmanager
def _crew(
    waiting: int, workers: int | None, device: str | None, on: str | None
) -> Iterator[Sequence["Worker | RayWorker"]]:
    """As many workers as are asked for, or as have room, and no more than there are runs."""
    if on is None:
        devices = gpus(device)
        count = max(1, min(waiting, workers or len(devices) or cores()))
        yield [Worker(environment(slot, count, devices), device) for slot in range(count)]
        return
    from varla.training.on_ray import Cluster

    cluster = Cluster(on, device)
    try:
        yield cluster.workers(max(1, min(waiting, workers or cluster.room)))
    finally:
        cluster.close()


def _lose(job: Job, loss: Lost) -> None:
    """Let the job wait for another worker, unless it has lost too many."""
    job.losses += 1
    if job.losses > _LOSSES:
        job.state, job.note = FAILED, f"lost {job.losses} workers; the last: {loss}"
    else:
        job.state, job.note = WAITING, str(loss)  # the next worker sees whether there is something to resume


def _name(values: Mapping[str, Any]) -> str:
    lasts = [key.rsplit(".", 1)[-1] for key in values]
    parts = []
    for key, value in values.items():
        last = key.rsplit(".", 1)[-1]
        prefix = "" if key in _TELLING else last if lasts.count(last) == 1 else key
        parts.append(prefix + name_part(value))
    return "-".join(parts)


def _check(config: RunConfig) -> None:
    """Find mistakes that show without building the model."""
    build_task(config)
    refuse_unknown("mechanism", config.mechanism, MECHANISMS)
    made = backbone_config(config.preset, config.mechanism, layer=config.layer, **config.model)
    with torch.device("meta"):  # checks the layer's options; nothing is allocated
        build(config.mechanism, d_model=made.d_model, n_heads=made.n_heads, **made.layer)


def _settle(job: Job, code: int, *, stopping: bool) -> None:
    """Set the job's state from its worker's exit code."""
    if code in (EXIT_CODES[FINISHED], EXIT_CODES[DIVERGED]):
        job.state = DIVERGED if code == EXIT_CODES[DIVERGED] else FINISHED
        job.note = str(Run(job.folder).record().get("message") or "")
    elif stopping:
        job.state = INTERRUPTED
    elif code < 0:
        job.state, job.note = FAILED, f"killed by {signal.Signals(-code).name}"
    else:
        job.state, job.note = FAILED, _last_line(job.log) or f"exit code {code}"


def _stop(active: Mapping["Worker | RayWorker", Job]) -> None:
    """Ask the busy workers to save, and wait for them."""
    for worker in active:
        worker.ask_to_save()
    deadline = time.monotonic() + _PATIENCE
    for worker, job in active.items():
        _settle(job, worker.wait(deadline - time.monotonic()), stopping=True)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
