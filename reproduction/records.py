"""Results of runs, kept as one small JSON file per preset and item. Reports are drawn from these files alone."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reproduction.runs import Run, Train
from varla.runs.metrics import EVAL, eval_metric, is_eval, with_current_names
from varla.runs.outcomes import DIVERGED, FINISHED
from varla.runs.writing import write_aside
from varla.training import RunConfig

Record = dict[str, Any]
T = TypeVar("T")
_DIGITS = 6  # significant digits of a number: more are noise, and make the files several times as large


class NotRun(LookupError):
    """A claim needs a run that has no record."""


def need(found: T | None) -> T:
    """`found`, or NotRun if it is None."""
    if found is None:
        raise NotRun
    return found


@dataclass
class Results:
    """Records of runs, by their keys."""

    records: dict[str, Record] = field(default_factory=dict)

    def get(self, run: Run | None) -> Record | None:
        """The record of a run that finished or diverged; None if there is no such record."""
        found = None if run is None else self.records.get(run.key)
        return found if found is not None and found["status"] in (FINISHED, DIVERGED) else None

    def value(self, run: Run | None) -> Any:
        """The result of a measurement; None if it has no record."""
        found = self.get(run)
        return None if found is None else found.get("value")

    def need(self, run: Run | None) -> Any:
        """The result of a measurement; NotRun if it has no record."""
        return need(self.value(run))

    def accuracy(self, run: Train | None, name: str = EVAL) -> float | None:
        """The last accuracy of a training run: 0 if it diverged, None if it has no record."""
        found = self.get(run)
        if found is None:
            return None
        return 0.0 if found["status"] == DIVERGED else found["final"].get(eval_metric(name))

    def accuracies(self, runs: Iterable[Train | None], name: str = EVAL) -> list[float]:
        """The last accuracies of the runs that have a record."""
        return [x for x in (self.accuracy(run, name) for run in runs) if x is not None]

    def curve(self, run: Train | None, metric: str = EVAL) -> list[tuple[int, float]]:
        """(step, value) of a logged metric; empty if the run has no record."""
        found = self.get(run) or {}
        return [(int(step), float(value)) for step, value in found.get("curves", {}).get(metric, [])]


def of_training(run: Train, record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Record:
    """What is kept of a training run: a part of its record, and its learning curves with fewer points."""
    names = sorted({name for entry in metrics for name in entry if name == "loss" or is_eval(name)})
    return {
        "key": run.key,
        "label": run.label,
        "train": changed(run.config),
        **{name: record.get(name) for name in ("status", "message", "steps", "final", "chance", "parameters")},
        "state bytes": record.get("state bytes"),
        "seconds": record.get("seconds"),
        "device": record.get("device"),
        "environment": record.get("environment"),
        "curves": {name: _curve(metrics, name) for name in names},
    }


def changed(config: RunConfig) -> dict[str, Any]:
    """The settings that differ from the defaults, which is enough to make the run again."""
    usual, given = RunConfig().to_dict(), config.to_dict()
    train = {name: value for name, value in given["train"].items() if value != usual["train"][name]}
    own = {name: value for name, value in given.items() if name != "train" and value not in (usual[name], {})}
    return {**own, "mechanism": given["mechanism"], "task": given["task"], **({"train": train} if train else {})}


def load(folder: Path, preset: str) -> Results:
    """All records of a preset, of all items. A damaged file is an error that names it."""
    found = Results()
    for path in sorted((folder / preset).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            surroundings = content["environments"]
            for record in content["runs"]:
                named = {part: with_current_names(record[part]) for part in ("final", "curves") if record.get(part)}
                surrounding = surroundings[record["environment"]]
                found.records[record["key"]] = {**record, **named, "environment": surrounding}
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): restore it, or delete it to run its item again") from error
    return found


def save(folder: Path, preset: str, item: str, runs: Iterable[Run], results: Results) -> Path:
    """Write the records of an item's runs. Runs without a record are left out; no record at all writes no file."""
    surroundings: list[Any] = []
    kept = []
    for run in {run.key: run for run in runs}.values():
        record = results.records.get(run.key)
        if record is not None:
            machine = {k: v for k, v in (record.get("environment") or {}).items() if k != "date"}
            if machine not in surroundings:
                surroundings.append(machine)
            kept.append({**record, "environment": surroundings.index(machine)})
    path = folder / preset / f"{item}.json"
    if not kept:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(rounded(record)) for record in kept)
    text = (
        f'{{"item": {json.dumps(item)}, "preset": {json.dumps(preset)},\n "environments": {json.dumps(surroundings)},\n'
    )
    write_aside(path, f'{text} "runs": [\n  {lines}\n]}}\n')
    return path


def rounded(value: Any) -> Any:
    """The same JSON value with rounded numbers. NaN and infinity become text, because JSON lacks them."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _curve(metrics: Sequence[Mapping[str, Any]], name: str, most: int = 20) -> list[tuple[int, float]]:
    """(step, value) of a logged metric: every evaluation, or at most `most` losses, the last one included."""
    points = [(entry["step"], entry[name]) for entry in metrics if name in entry]
    step = max(1, -(-len(points) // most)) if name == "loss" else 1
    return points[::-1][::step][::-1]
