"""The paper's training protocol as runs, statistics over seeds, and the judges and charts built on them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.claims import Claim, Finding, Judge
from reproduction.records import Results, need
from reproduction.runs import Preset, Train
from reproduction.verdicts import CONDITIONAL, NOT_REPRODUCED, REPRODUCED
from varla.runs.metrics import EVAL

# The paper's four mechanisms. Its "DeltaNet" is not that of Yang et al.: see varla.layers.
MECHANISMS = ("softmax", "linear", "deltanet-paper", "vla")
CHANNEL = {"gate": "channel"}  # the paper's DeltaNet as in its experiments
_STUDENT = {  # 97.5% quantiles of Student's t, by the number of values
    2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306,
    10: 2.262, 11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131,
}  # fmt: skip
QUICK_PAIRS = 8  # the quick preset trains at this n only, and not the paper's DeltaNet, which is slow on a CPU
QUICK_TRAIN = {"steps": 1000, "lr": 1e-3}
FAST = 1e-3  # a learning rate at which 1000 steps are enough; the paper's is 3e-4


def paper_runs(
    preset: Preset,
    mechanism: str,
    task: Mapping[str, Any],
    *,
    steps: int = 3000,
    train: Mapping[str, Any] | None = None,
    layer: Mapping[str, Any] | None = None,
    own_rate: bool = False,
) -> list[Train | None]:
    """Runs of the paper's protocol, one per seed. The quick preset has 1000 steps at 1e-3, or None if that is too slow.

    (1000 steps at the paper's 3e-4 are too few for most seeds.) With `own_rate`, the quick preset keeps the learning
    rate and the evaluation interval.
    """
    rare = {"eval_every": max(1, steps // 5), "checkpoint_every": steps, "graph": not preset.quick}
    schedule = {"steps": steps, **rare, **(train or {})}
    if preset.quick:
        if mechanism == "deltanet-paper" or task.get("n", QUICK_PAIRS) != QUICK_PAIRS or task.get("seq_len", 0) > 63:
            return [None] * len(preset.seeds)
        quick = {} if own_rate else {"lr": QUICK_TRAIN["lr"], "eval_every": 100}
        schedule = {**schedule, **quick, "steps": min(steps, int(QUICK_TRAIN["steps"])), "checkpoint_every": 1000}
    own = CHANNEL if mechanism == "deltanet-paper" else {}
    settings: dict[str, Any] = {"mechanism": mechanism, "task": dict(task), "train": schedule}
    if own or layer:
        settings["layer"] = {**own, **(layer or {})}
    return [Train({**settings, "seed": seed}) for seed in preset.seeds]


def made(runs: Sequence[Train | None]) -> list[Train]:
    """The runs that the preset makes: without the None entries."""
    return [run for run in runs if run is not None]


@dataclass(frozen=True)
class Sample:
    """One value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return sum(self.values) / len(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    @property
    def deviation(self) -> float:
        """The sample's standard deviation; 0 for one value."""
        n = len(self.values)
        return math.sqrt(sum((x - self.mean) ** 2 for x in self.values) / (n - 1)) if n > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the mean, by Student's t; a point for one value."""
        half = _STUDENT.get(len(self.values), 1.96) * self.deviation / math.sqrt(len(self.values))
        return self.mean - half, self.mean + half

    def finding(self, verdict: str, note: str = "") -> Finding:
        """A finding with this mean and spread."""
        return Finding(verdict, self.mean, self.low, self.high, len(self.values), note)


def sample(results: Results, runs: Sequence[Train | None], name: str = EVAL) -> Sample | None:
    """The accuracies of runs that differ in their seeds; None unless all have a record."""
    found = results.accuracies(runs, name)
    return Sample(tuple(found)) if found and len(found) == len(runs) else None


Seeds = Callable[[Preset], Sequence[Train | None]]
Why = Callable[[Results, Preset], str]  # explains, by other runs, why a number was not reproduced


def within(
    runs: Seeds, paper: float, margin: float, name: str = EVAL, conditions: str = "", why: Why | None = None
) -> Judge:
    """A judge: reproduced if the mean over seeds is within `margin` of the paper's value.

    `conditions`, if any, make that "reproduced with conditions".
    """
    return _judge(runs, name, lambda mean: abs(mean - paper) <= margin, conditions, why)


def at_least(runs: Seeds, least: float, name: str = EVAL, conditions: str = "") -> Judge:
    """A judge: reproduced if the mean over seeds is at least `least`. `conditions` as for `within`."""
    return _judge(runs, name, lambda mean: mean >= least, conditions)


def _judge(runs: Seeds, name: str, good: Callable[[float], bool], conditions: str, why: Why | None = None) -> Judge:
    def judge(results: Results, preset: Preset) -> Finding:
        found = need(sample(results, runs(preset), name))
        verdict = (CONDITIONAL if conditions else REPRODUCED) if good(found.mean) else NOT_REPRODUCED
        reason = why(results, preset) if why is not None and verdict == NOT_REPRODUCED else ""
        return found.finding(verdict, protocol(preset, "; ".join(part for part in (conditions, reason) if part)))

    return judge


def conditions_of(mechanism: str) -> str:
    """What a mechanism needs for the paper's numbers although the paper's text does not say so."""
    return "with the output norm that the text leaves out" if mechanism == "vla" else ""


def accuracy_claim(
    id: str,
    where: str,
    says: str,
    paper: float,
    margin: float,
    mechanism: str,
    runs: Seeds,
    name: str = EVAL,
    why: Why | None = None,
) -> Claim:
    """A claim that a mechanism's accuracy, the mean over seeds, is within `margin` of the paper's."""
    rule = f"mean over seeds within {margin:g} of the paper's"
    return Claim(id, where, says, paper, rule, within(runs, paper, margin, name, conditions_of(mechanism), why))


def margin(paper: float) -> float:
    """How far an accuracy may be off: 0.03, or 0.1 if the paper's is neither near chance nor near 1."""
    return 0.03 if paper < 0.2 or paper > 0.95 else 0.1


def elsewhere(others: Mapping[str, Seeds], name: str = EVAL) -> Why:
    """The same accuracy in other runs; the keys say how those differ."""

    def why(results: Results, preset: Preset) -> str:
        if preset.quick:
            return ""
        found = {how: sample(results, runs(preset), name) for how, runs in others.items()}
        said = [f"{each.mean:.3f} {how}" for how, each in found.items() if each is not None]
        return f"it is {' and '.join(said)}" if said else ""

    return why


def during_training(runs: Seeds, paper: float, mechanism: str) -> Why:
    """When training passes the paper's number: the means over seeds just before and just after."""

    def why(results: Results, preset: Preset) -> str:
        points = curves(results, {mechanism: runs(preset)})
        below = [point for point in points if point["y"] < paper]
        above = [point for point in points if point["y"] >= paper]
        if preset.quick or not below or not above:
            return ""
        a, b = below[-1], above[0]
        spread = f"seeds from {a['low']:.3f} to {a['high']:.3f}"
        return f"during training it is {a['y']:.3f} at step {a['x']} ({spread}) and {b['y']:.3f} at step {b['x']}"

    return why


def protocol(preset: Preset, note: str) -> str:
    """The note; at the quick preset, with its protocol."""
    quick = f"quick preset: one seed, at most {QUICK_TRAIN['steps']} steps at {QUICK_TRAIN['lr']:g}"
    return "; ".join(part for part in (note, quick if preset.quick else "") if part)


def paper_points(values: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """Points of a chart from the paper's numbers, by series and x."""
    return [
        {"x": x, "y": y, "series": series, "source": "paper"}
        for series, each in values.items()
        for x, y in each.items()
    ]


def by_x(
    results: Results, runs: Mapping[tuple[str, float], Sequence[Train | None]], name: str = EVAL
) -> list[dict[str, Any]]:
    """Points of a chart, one for each (series, x): mean and spread over the seeds."""
    points = []
    for (series, x), each in runs.items():
        found = sample(results, each, name)
        if found is not None:
            spread = {"low": found.low, "high": found.high}
            points.append({"x": x, "y": found.mean, "series": series, "source": "ours", **spread})
    return points


def curves(results: Results, runs: Mapping[str, Sequence[Train | None]], metric: str = EVAL) -> list[dict[str, Any]]:
    """Points of learning curves, by series: mean and spread over the seeds at every step that all seeds have."""
    points = []
    for series, each in runs.items():
        found = [dict(results.curve(run, metric)) for run in each if results.get(run) is not None]
        for step in sorted(set.intersection(*(set(x) for x in found)) if found else ()):
            values = Sample(tuple(x[step] for x in found))
            spread = {"low": values.low, "high": values.high}
            points.append({"x": step, "y": values.mean, "series": series, "source": "ours", **spread})
    return points
