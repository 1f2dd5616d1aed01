"""What `varla compare` shows of a run: its cells by column, read from the record, and its learning curves."""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from varla.cli.kinds import LM, kind_of
from varla.cli.output import accuracies, share, whole
from varla.runs.metrics import EVAL, eval_metric, newest
from varla.runs.outcomes import FINISHED

UNFINISHED = "no record"
# Columns of words. All others hold numbers.
WORDS = ("run", "mechanism", "task", "model", "tokenizer", "status")
WHOLE = ("seed", "seeds", "steps", "parameters", "state bytes", "train tokens", "tokens/s")
SPREAD = " sd"  # suffix of a standard deviation's column
MetricsOf = list[dict[str, Any]]


@dataclass
class Row:
    """One run, or the average of several that differ only in their seed."""

    name: str
    kind: str
    settings: Mapping[str, Any]  # without the seed
    cells: dict[str, Any]
    metrics: MetricsOf
    measured: Sequence[str]  # the columns that say how good the run is
    metric: str  # drawn unless another is asked for
    spread: dict[str, float] = field(default_factory=dict)  # standard deviations over the seeds
    environments: Sequence[Mapping[str, Any]] = ()  # where the runs were made, as their records say

    def text(self, column: str) -> str:
        """A cell as the table shows it."""
        value = self.cells.get(column)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if column in WHOLE:
                return str(value) if column == "seed" else whole(value)
            spread = f" ± {self.spread[column]:.4f}" if column in self.spread else ""
            return f"{share(value)}{spread}"
        return "" if value is None else str(value)

    def record(self) -> dict[str, Any]:
        """All cells, for CSV and JSON. Non-finite numbers are left empty."""
        found: dict[str, Any] = {"run": self.name}
        for column, value in self.cells.items():
            found[column] = None if _is_not_finite(value) else value
            if column in self.spread:
                found[column + SPREAD] = self.spread[column]
        return found


def read_row(name: str, folder: Path) -> Row:
    """Read a run of either kind."""
    from varla.runs.folder import RunFolder

    config = RunFolder(folder).read_config()
    try:
        row = _language_row(name, folder) if kind_of(config) == LM else _lab_row(name, folder)
        _check_cells(row.cells)
        return row
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{folder}: its record or what it logged is damaged ({type(error).__name__}: {error})"
        ) from error


def _check_cells(cells: Mapping[str, Any]) -> None:
    """Raise a TypeError if a column of numbers holds something else: a damaged record could not be averaged."""
    for column, value in cells.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if column not in WORDS and value is not None and not number:
            raise TypeError(f"{column} must be a number, got {str(value)[:40]!r}")


def _lab_row(name: str, folder: Path) -> Row:
    """A run of `varla train`. The metrics are newer than the record while it runs, and after a kill."""
    from varla.training import Run

    run = Run(folder)
    config, record, metrics = run.config(), run.record(), run.metrics()
    latest = newest(metrics)
    task = dict(config.task)
    words = [str(task.pop("name", "")), *(f"{key}={value}" for key, value in task.items())]
    found = accuracies(latest)
    cells = {
        "mechanism": config.mechanism,
        "task": " ".join(words),
        "seed": config.seed,
        "steps": record.get("steps") if record.get("status") == FINISHED else latest.get("step", 0),
        **found,
        "chance": record.get("chance"),
        "parameters": record.get("parameters"),
        "state bytes": record.get("state bytes"),
        "tokens/s": _median(entry.get("tokens/s") for entry in metrics),
        "status": record.get("status", UNFINISHED),
    }
    metric = eval_metric(next(iter(found), EVAL))
    without = _without_seed(config.to_dict())
    return Row(name, kind_of({}), without, cells, metrics, list(found), metric, environments=_environments(record))


def _language_row(name: str, folder: Path) -> Row:
    """A run of `varla train-lm`. Until it is finished, its newest checkpoint says how far it is."""
    from varla.lm.checkpoints import all_in
    from varla.lm.settings import from_dict
    from varla.runs.folder import RunFolder

    run = RunFolder(folder)
    settings, record = from_dict(run.read_config()), run.record()
    checkpoints = all_in(folder)[::-1]  # newest first
    metrics = _language_metrics(checkpoints)
    latest = newest(metrics)
    losses = {
        "loss": record.get("loss", latest.get("loss")),
        **{f"bits/byte {context}": found["bits per byte"] for context, found in record.get("scores", {}).items()},
    }
    cells = {
        "mechanism": _mechanisms(settings.model, [folder / "model", *checkpoints]),
        "model": settings.model.get("preset") or settings.model.get("folder"),
        "tokenizer": settings.tokenizer,
        "seed": settings.seed,
        "steps": record.get("steps", latest.get("step", 0)),
        **losses,
        "parameters": record.get("parameters"),
        "train tokens": record.get("train tokens"),
        "tokens/s": record.get("tokens/s"),
        "status": record.get("status", UNFINISHED),
    }
    without = _without_seed(settings.to_dict())
    return Row(name, LM, without, cells, metrics, list(losses), "loss", environments=_environments(record))


def _environments(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The record's environment, if it has one."""
    found = record.get("environment")
    return [found] if isinstance(found, Mapping) else []


def _language_metrics(checkpoints: Sequence[Path]) -> MetricsOf:
    """What the Trainer logged, from the first checkpoint that can be read; empty if there is none."""
    for checkpoint in checkpoints:
        try:
            history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
            return [dict(entry) for entry in history if isinstance(entry["step"], int)]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return []


def _mechanisms(model: Mapping[str, Any], saved: Sequence[Path]) -> str:
    """The mechanism of the layers, or those of a hybrid, from the settings or the first saved model that names them."""
    found = model.get("mechanisms")
    for place in saved:
        if found is None:
            try:
                found = json.loads((place / "config.json").read_text())["mechanisms"]
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                continue
    if isinstance(found, list):
        return ", ".join(f"{found.count(each)} {each}" for each in dict.fromkeys(found))
    return "" if found is None else str(found)


def averages(rows: Sequence[Row]) -> list[Row]:
    """One row for all runs that differ only in their seed: means, and standard deviations of what is measured."""
    groups: list[list[Row]] = []
    for row in rows:
        same = next((group for group in groups if group[0].settings == row.settings), None)
        if same is None:
            groups.append([row])
        else:
            same.append(row)
    names = [_common([row.name for row in group]) for group in groups]
    return [
        _average(name if names.count(name) == 1 else group[0].name, group)
        for name, group in zip(names, groups, strict=True)
    ]


def _average(name: str, group: Sequence[Row]) -> Row:
    first = group[0]
    cells: dict[str, Any] = {}
    spread = {}
    for column in dict.fromkeys(column for row in group for column in row.cells):
        values = [x for row in group if (x := row.cells.get(column)) is not None and not _is_not_finite(x)]
        if column == "seed":
            cells["seeds"] = len(values)
        elif values and column not in WORDS:
            cells[column] = values[0] if len(set(values)) == 1 else statistics.fmean(values)
            if column in first.measured and len(values) > 1:
                spread[column] = statistics.stdev(values)
        else:
            counts = [f"{values.count(each)} {each}" for each in dict.fromkeys(values)]
            cells[column] = values[0] if len(set(values)) == 1 else ", ".join(counts)
    made = [each for row in group for each in row.environments]
    return Row(
        name, first.kind, first.settings, cells, _mean_metrics(group), first.measured, first.metric, spread, made
    )


def _mean_metrics(group: Sequence[Row]) -> MetricsOf:
    """The means of every metric, at the steps where all runs that logged it did."""
    logged = [metric for row in group for metric in newest(row.metrics) if metric != "step"]
    values: dict[int, dict[str, list[float]]] = {}
    for row in group:
        for entry in row.metrics:
            for metric, value in entry.items():
                if metric != "step" and isinstance(value, (int, float)):
                    values.setdefault(entry["step"], {}).setdefault(metric, []).append(value)
    return [
        {"step": step, **{name: statistics.fmean(x) for name, x in found.items() if len(x) == logged.count(name)}}
        for step, found in sorted(values.items())
    ]


def _common(names: Sequence[str]) -> str:
    """The names without their seeds, if that makes them equal; else the first."""
    bare = {re.sub(r"^(seed|s)\d+[-_]|[-_](seed|s)\d+(?=$|[-_])", "", name) for name in names}
    return bare.pop() if len(names) > 1 and len(bare) == 1 else names[0]


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "seed"}


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None
