"""Runs that were made, in one file: what is left to do, which rate is best."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.lm.contenders import CHOOSING, CONTENDERS, Scale
from benchmarks.lm.run import Job
from varla.training import environment
from varla.training.run import write_aside

Run = dict[str, Any]


@dataclass
class Record:
    """`runs` in the order they were made; one with the same settings is made once."""

    path: Path
    scale: Scale
    corpus: str
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, scale: Scale, corpus: str) -> "Record":
        found = json.loads(path.read_text())["runs"] if path.exists() else []
        return cls(path, scale, corpus, found)

    def find(self, job: Job) -> Run | None:
        key = job.key(self.scale, self.corpus)
        return next((run for run in self.runs if run["settings"] == key), None)

    def add(self, job: Job, found: Mapping[str, Any]) -> None:
        """Keep a run, at once: a stop loses no more than what is under way."""
        self.runs.append({"settings": job.key(self.scale, self.corpus), **found, "environment": environment.describe()})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(self.path, json.dumps({"runs": self.runs}, indent=1) + "\n")

    def chosen(self, name: str) -> float | None:
        """The rate with the fewest bits per byte on the documents to choose on; None unless all were tried."""
        tries = [self.find(job) for job in choices(name, self.scale)]
        if not all(tries):
            return None
        context = str(self.scale.context)
        good = [each for each in tries if each is not None and context in each["bits per byte"]]
        if not good:
            return None
        best = min(good, key=lambda run: float(run["bits per byte"][context]))
        return float(best["settings"]["rate"])

    def speeds(self) -> dict[str, float]:
        """Training tokens a second of every contender that has run."""
        return {run["settings"]["contender"]: run["tokens/s"] for run in self.runs if run["status"] == "finished"}

    def next(self, names: Sequence[str]) -> Job | None:
        """What to do next: every rate of every contender, then a seed of all of them before the next seed."""
        for name in names:
            for job in choices(name, self.scale):
                if self.find(job) is None:
                    return job
        for seed in self.scale.seeds:
            for name in names:
                rate = self.chosen(name)
                if rate is None:  # every one of them diverged
                    continue
                job = replace(report(name, self.scale, seed), rate=rate)
                if self.find(job) is None:
                    return job
        return None


def choices(name: str, scale: Scale) -> list[Job]:
    return [Job(name, "choice", rate, CHOOSING, scale.choice) for rate in scale.rates]


def report(name: str, scale: Scale, seed: int) -> Job:
    """Its rate is to be chosen."""
    return Job(name, "report", 0.0, seed, scale.tokens)


def everything(scale: Scale) -> int:
    """How many runs there are."""
    return len(CONTENDERS) * (len(scale.rates) + len(scale.seeds))
