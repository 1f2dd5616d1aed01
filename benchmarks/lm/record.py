"""The finished runs, in one file: which run is next, and which learning rate is best."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.lm.contenders import CHOOSING, Scale
from benchmarks.lm.run import Job
from varla.runs import environment
from varla.runs.outcomes import FINISHED
from varla.runs.writing import write_aside

Run = dict[str, Any]


def tried(run: Run) -> float | None:
    """Bits per byte on the documents kept for choosing a rate; None if the run was not scored on them."""
    scores = run["bits per byte"] if run["settings"]["purpose"] == "choice" else run.get("tried", {})
    return next(iter(scores.values()), None)


def best_rate(runs: Sequence[Run]) -> float | None:
    """The rate with the fewest bits per byte on the documents kept for this; None if no run was scored on them."""
    found = [(bits, run["settings"]["rate"]) for run in runs if (bits := tried(run)) is not None]
    return min(found)[1] if found else None


@dataclass
class Record:
    """`runs` in the order they were made; no two have the same settings."""

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
        """Save a run at once, so that a stop loses only the current one."""
        self.runs.append({"settings": job.key(self.scale, self.corpus), **found, "environment": environment.describe()})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(self.path, json.dumps({"runs": self.runs}, indent=1) + "\n")

    def tries(self, name: str) -> list[Job]:
        """The runs that choose a rate: the scale's, and further ones while the best is the smallest or largest."""
        purpose, seed = ("report", self.scale.seeds[0]) if self.scale.whole else ("choice", CHOOSING)
        jobs = [Job(name, purpose, rate, seed, self.scale.choice) for rate in self.scale.rates]
        for _ in range(self.scale.beyond):
            rates, best = [job.rate for job in jobs], self._best(jobs)
            if best not in (rates[0], rates[-1]):
                break
            more = rates[0] ** 2 / rates[1] if best == rates[0] else rates[-1] ** 2 / rates[-2]
            job = replace(jobs[0], rate=float(f"{more:.3g}"))
            jobs = [job, *jobs] if best == rates[0] else [*jobs, job]
        return jobs

    def chosen(self, name: str) -> float | None:
        """The rate with the fewest bits per byte on the documents kept for this; None unless all were tried."""
        return self._best(self.tries(name))

    def _best(self, jobs: Sequence[Job]) -> float | None:
        """The best rate of these runs; None if one is missing or all diverged."""
        found = [self.find(job) for job in jobs]
        if not all(found):
            return None
        return best_rate([each for each in found if each is not None])

    def speeds(self) -> dict[str, float]:
        """Training tokens per second of every contender that has run."""
        return {run["settings"]["contender"]: run["tokens/s"] for run in self.runs if run["status"] == FINISHED}

    def next(self, names: Sequence[str]) -> Job | None:
        """The next run: first all contenders at a rate, then at the next; then a seed of all of them, then the next."""
        for jobs in zip_longest(*map(self.tries, names)):
            for job in jobs:
                if job is not None and self.find(job) is None:
                    return job
        for seed in self.scale.seeds:
            for name in names:
                rate = self.chosen(name)
                if rate is None:  # all of them diverged
                    continue
                job = Job(name, "report", rate, seed, self.scale.tokens)
                if self.find(job) is None:
                    return job
        return None
