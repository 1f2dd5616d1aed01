"""The demo's runs: the contenders, what all of them share, and what is read from the trained models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from varla.runs.folder import RunError
from varla.runs.metrics import EVAL
from varla.runs.outcomes import FINISHED
from varla.tasks import IGNORE
from varla.training import Run, build_task, sweep, trained_model

STEPS = 800
SEEDS = 3  # runs of each contender
PAIRS = 12
HEAD_DIM = 8
WATCH = "watch.html"  # beside the page: what the memories of `WATCHED` hold (`varla watch`)
WATCHED = ("gated-vla", "gated-deltanet")
EXAMPLE = 7_000_001  # seed of the sequence that all models answer: not one that training or evaluation draws from
CONTEXTS = tuple(128 * 2**i for i in range(14))  # 128 to 1M tokens


@dataclass(frozen=True)
class Contender:
    """A mechanism of the demo. `wide`: values are twice as wide as keys, for about as many bytes as A takes."""

    mechanism: str
    wide: bool = False

    @property
    def name(self) -> str:
        """Its name in tables and charts."""
        return f"{self.mechanism}, wide" if self.wide else self.mechanism

    @property
    def grid(self) -> dict[str, list[Any]]:
        """The settings of its own, for a sweep."""
        return {"mechanism": [self.mechanism], **({"layer.value_dim": [2 * HEAD_DIM]} if self.wide else {})}


# The slowest first, so that two workers end together.
CONTENDERS = (
    Contender("gated-vla"),
    Contender("vla"),
    Contender("gated-deltanet", wide=True),
    Contender("gated-deltanet"),
    Contender("deltanet"),
    Contender("linear"),
    Contender("softmax"),
)


@dataclass(frozen=True)
class Example:
    """The sequence that all models answer, in words: its pairs, and its queries as (key, right value)."""

    pairs: Sequence[tuple[str, str]]
    queries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Trained:
    """One finished run: its record and metrics."""

    folder: Path
    record: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    @property
    def accuracy(self) -> float:
        """Share of queries answered right at the end, on sequences that training has not seen."""
        return float(self.record["final"][EVAL])


@dataclass(frozen=True)
class Result:
    """A contender's runs, one a seed, and what the first model says and needs.

    `sizes`: bytes of state by context length; `convolution`: those of the short convolution, at every length;
    `answers`: at the queries of the example.
    """

    name: str
    runs: Sequence[Trained]
    sizes: Mapping[int, int]
    convolution: int
    example: Example
    answers: Sequence[str]

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return fmean(run.accuracy for run in self.runs)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest accuracy of a seed."""
        found = [run.accuracy for run in self.runs]
        return min(found), max(found)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state after the task's tokens."""
        return int(self.runs[0].record["state bytes"])

    @property
    def tokens_per_second(self) -> float:
        """Training speed: the median of the logged values."""
        return median(entry["tokens/s"] for run in self.runs for entry in run.metrics if "tokens/s" in entry)

    @property
    def right(self) -> int:
        """How many queries of the example it answers right."""
        return sum(said == value for said, (_, value) in zip(self.answers, self.example.queries, strict=True))

    def curve(self) -> list[dict[str, float]]:
        """The mean accuracy over the seeds, by step, as metrics."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            for entry in run.metrics:
                if EVAL in entry:
                    found.setdefault(entry["step"], []).append(entry[EVAL])
        return [{"step": step, EVAL: fmean(values)} for step, values in found.items()]

    def row(self) -> dict[str, str]:
        """The cells of the demo's table, by column."""
        least, most = self.range
        return {
            "mechanism": self.name,
            "accuracy": f"{self.accuracy:.3f}",
            "least to most": f"{least:.3f} to {most:.3f}",
            "state bytes": f"{self.state_bytes:,}",
            "tokens/s": f"{self.tokens_per_second:,.0f}",
            "seconds": f"{sum(run.record['seconds'] for run in self.runs):.0f}",
        }


def base(steps: int) -> dict[str, Any]:
    """The settings that all runs share."""
    return {
        "preset": "tuned",
        "task": {"name": "mqar-zoology", "n": PAIRS, "vocab_size": 4 * PAIRS},
        "model": {"d_model": 64, "n_layers": 1, "n_heads": 1, "ffn": 128},
        "layer": {"head_dim": HEAD_DIM},
        "train": {
            "steps": steps,
            "batch_size": 32,
            "lr": 5e-3,
            "log_every": 25,
            "eval_every": max(1, steps // 16),
            "eval_batches": 4,
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
    """Train the contenders, unless they are finished already, and collect their results, the most accurate first.

    The seeds are `seed` and those after it.
    """
    shared, seeds = base(steps), [seed + i for i in range(SEEDS)]
    found = [sweep.expand(shared, {**each.grid, "seed": seeds}, folder / "runs") for each in CONTENDERS]
    jobs = [job for each in found for job in each]
    sweep.plan(jobs)
    sweep.run(jobs, device="cpu", watch=watch)
    failed = [job for job in jobs if job.state != FINISHED]
    if failed:
        raise RunError("; ".join(f"{job.folder}: {job.state} {job.note}" for job in failed))
    results = [collect(each.name, [job.folder for job in own]) for each, own in zip(CONTENDERS, found, strict=True)]
    return sorted(results, key=lambda result: -result.accuracy)


def collect(name: str, folders: Sequence[Path]) -> Result:
    """Load a contender's finished runs, and let the first model answer the example."""
    runs = [Trained(folder, Run(folder).record(), Run(folder).metrics()) for folder in folders]
    config = Run(folders[0]).config()
    task, (model, _) = build_task(config), trained_model(folders[0])
    inputs, labels = task.batch(1, torch.Generator().manual_seed(EXAMPLE))
    with torch.no_grad():
        said = torch.where(labels == IGNORE, labels, model.eval()(inputs)[0].argmax(-1))
    tokens = inputs[0].tolist()
    words, values = task.words(tokens, labels[0].tolist())
    pairs = list(zip(words[: 2 * task.n : 2], words[1 : 2 * task.n : 2], strict=True))
    queries = [(word, value) for word, value in zip(words, values, strict=True) if value is not None]
    answers = [answer for answer in task.words(tokens, said[0].tolist())[1] if answer is not None]
    sizes = {length: model.state_size(length) for length in CONTEXTS}
    convolution = sum(block.mixer.conv.state_bytes() for block in model.blocks)  # type: ignore[union-attr, operator]
    return Result(name, runs, sizes, convolution, Example(pairs, queries), answers)
