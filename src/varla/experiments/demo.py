"""The demo: four mechanisms learn to recall eight pairs, side by side, on a CPU, in minutes.

The paper's protocol (preset `paper`) with one change: a learning rate of 1e-3 instead of 3e-4, with which a thousand
steps are too few.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from varla.runs.outcomes import FINISHED
from varla.training import Run, build_model, build_task, checkpoint, sweep

MECHANISMS = ("vla", "deltanet-paper", "linear", "softmax")  # the slowest first: two workers then end together
STEPS = 1000


@dataclass(frozen=True)
class Result:
    """What one mechanism showed: record, learning curve, and readings of its last layer over positions."""

    mechanism: str
    record: dict[str, Any]
    metrics: list[dict[str, Any]]
    readings: dict[str, list[float]]

    @property
    def accuracy(self) -> float:
        """Share of queries answered right at the end."""
        return float(self.record["final"]["eval/eval"])

    @property
    def tokens_per_second(self) -> float:
        """Training speed, as the median over what was logged."""
        found = sorted(entry["tokens/s"] for entry in self.metrics if "tokens/s" in entry)
        return found[len(found) // 2] if found else 0.0


def base(steps: int, seed: int) -> dict[str, Any]:
    """The settings that the four runs share."""
    return {
        "preset": "paper",
        "seed": seed,
        "task": {"name": "mqar", "n": 8},
        "train": {
            "steps": steps,
            "lr": 1e-3,
            "log_every": 25,
            "eval_every": max(1, steps // 20),
            "eval_batches": 15,
            "checkpoint_every": steps,
        },
    }


def run(
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 42,
    watch: Callable[[Sequence[sweep.Job]], None] = lambda jobs: None,
) -> list[Result]:
    """Train the four (finished ones are not trained again) and collect what they showed."""
    jobs = sweep.expand(base(steps, seed), {"mechanism": list(MECHANISMS)}, folder / "runs")
    sweep.plan(jobs)
    sweep.run(jobs, device="cpu", watch=watch)
    failed = [job for job in jobs if job.state != FINISHED]
    if failed:
        raise RuntimeError("; ".join(f"{job.folder}: {job.state} {job.note}" for job in failed))
    return [collect(job.folder) for job in jobs]


def collect(folder: Path) -> Result:
    """Read a finished run, and read its trained memory token by token on a few fresh sequences."""
    found = Run(folder)
    config = found.config()
    model = build_model(config)
    newest = checkpoint.latest(found.checkpoints)
    if newest is None:
        raise RuntimeError(f"{folder} has no checkpoint")
    checkpoint.load_weights(newest, model)
    tokens, _ = build_task(config).batch(16, generator=torch.Generator().manual_seed(0))
    last = model.watch(tokens)[-1]
    readings = {name: values.mean((0, 2)).tolist() for name, values in last.items()}
    return Result(config.mechanism, found.record(), found.metrics(), readings)
