"""What runs left: one small JSON file an item and preset. Reports are drawn from these."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from varla.experiments.runs import Run, Train
from varla.runs.folder import write_aside
from varla.runs.outcomes import DIVERGED, FINISHED
from varla.training import RunConfig

Record = dict[str, Any]
_DIGITS = 6  # significant ones of every number kept: more would be noise, and files several times as large


@dataclass
class Results:
    """Records of runs, by their keys."""

    records: dict[str, Record] = field(default_factory=dict)

    def get(self, run: Run | None) -> Record | None:
        """The record of a run that ended, finished or diverged; None if there is none."""
        found = None if run is None else self.records.get(run.key)
        return found if found is not None and found["status"] in (FINISHED, DIVERGED) else None

    def value(self, run: Run | None) -> Any:
        """What a measurement returned, None if it was not made."""
        found = self.get(run)
        return None if found is None else found.get("value")

    def accuracy(self, run: Train | None, name: str = "eval") -> float | None:
        """The last accuracy of a training run; 0 if it diverged, None if it was not run."""
        found = self.get(run)
        if found is None:
            return None
        return 0.0 if found["status"] == DIVERGED else found["final"].get(f"eval/{name}")

    def accuracies(self, runs: Iterable[Train | None], name: str = "eval") -> list[float]:
        """The last accuracies of those that were run."""
        return [x for x in (self.accuracy(run, name) for run in runs) if x is not None]

    def curve(self, run: Train | None, metric: str = "eval/eval") -> list[tuple[int, float]]:
        """(step, value) of what was logged; empty if the run was not made."""
        found = self.get(run) or {}
        return [(int(step), float(value)) for step, value in found.get("curves", {}).get(metric, [])]


def of_training(run: Train, record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Record:
    """The part of a run's record that is kept, and its learning curves, thinned."""
    names = sorted({name for entry in metrics for name in entry if name == "loss" or name.startswith("eval/")})
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
    """The settings that are not the defaults: enough to make the run again."""
    usual, given = RunConfig().to_dict(), config.to_dict()
    train = {name: value for name, value in given["train"].items() if value != usual["train"][name]}
    own = {name: value for name, value in given.items() if name != "train" and value not in (usual[name], {})}
    return {**own, "mechanism": given["mechanism"], "task": given["task"], **({"train": train} if train else {})}


def load(folder: Path, preset: str) -> Results:
    """All records of a preset, whatever item they were made for. A damaged file is an error that names it."""
    found = Results()
    for path in sorted((folder / preset).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            surroundings = content["environments"]
            for record in content["runs"]:
                found.records[record["key"]] = {**record, "environment": surroundings[record["environment"]]}
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): restore it, or delete it to run its item again") from error
    return found


def save(folder: Path, preset: str, item: str, runs: Iterable[Run], results: Results) -> Path:
    """Write the records of an item's runs; those that there are none of are left out, and so is a file without any."""
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
    """The same JSON value with shorter numbers. What is not finite becomes text: JSON has no word for it."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _curve(metrics: Sequence[Mapping[str, Any]], name: str, most: int = 20) -> list[tuple[int, float]]:
    """(step, value) of what was logged: every evaluation, and of the loss at most so many, the last among them."""
    points = [(entry["step"], entry[name]) for entry in metrics if name in entry]
    step = max(1, -(-len(points) // most)) if name == "loss" else 1
    return points[::-1][::step][::-1]
