"""The page of `varla compare --plot x.html`: which run is best at the end, the learning curves, a table, settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from varla.report.curves import learning_curves
from varla.report.embed import embedded
from varla.report.page import Chart, Fold, Grid, Page, Part, Section, facts
from varla.report.series import Series, axis_title, is_accuracy, limits
from varla.runs.metrics import EVAL

COMPACT = ("mechanism", "state bytes", "tokens/s", "status")  # columns beside those of the curve, where runs have them
_MOST_POINTS = 12  # of a run's curve, in the table of its numbers


@dataclass(frozen=True)
class Compared:
    """A run: its cells by column, as text, its settings, and where it was made."""

    name: str
    cells: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environments: Sequence[Mapping[str, Any]] = ()


def make(
    runs: Sequence[Compared],
    metrics: Mapping[str, Sequence[Mapping[str, Any]]],
    found: Series,
    metric: str,
    chance: float | None = None,
) -> Page:
    """The page. `metrics` are the runs' own, and `found` the values among them that are drawn."""
    chart = Chart(
        "curves",
        f"{_named(metric).capitalize()} by training step",
        embedded(learning_curves(metrics, metric, chance).properties(height=340)),
        _chance(found, metric, chance),
        _points(found, metric),
    )
    missing = [run.name for run in runs if run.name not in found]
    curves: list[Part] = [chart, *([f"Not drawn: {', '.join(missing)}. Nothing was logged."] if missing else [])]
    table: list[Part] = [_compact(runs, found, metric), Fold("All columns", [_whole(runs)])]
    if (differences := _differences(runs)) is not None:
        table.append(Fold("Settings that differ", [differences]))
    return Page(
        "varla compare",
        headline(found, metric),
        [Section("Learning curves", curves, "learning-curves"), Section("Runs", table, "runs")],
        lead=lead(runs, found, metric, chance),
        facts=facts(*(each for run in runs for each in run.environments)),
    )


def _chance(found: Series, metric: str, chance: float | None) -> str:
    """What the chart shows of chance: its rule, unless it is far from the curves."""
    if chance is None:
        return ""
    low, high = limits([value for points in found.values() for _, value in points], metric, chance)
    return (
        f"grey rule: chance, {chance:.3g}" if low <= chance <= high else f"chance, {chance:.3g}, is outside the chart"
    )


def ranked(found: Series, metric: str) -> list[tuple[str, float]]:
    """Runs with their last value, the best first. Of a loss the smallest is best, of anything else the largest."""
    ends = [(name, points[-1][1]) for name, points in found.items()]
    return sorted(ends, key=lambda end: end[1] if _is_loss(metric) else -end[1])


def headline(found: Series, metric: str) -> str:
    """Which run is best at the end, and by how much."""
    ends = ranked(found, metric)
    name, value = ends[0]
    what = _named(metric)
    if len(ends) == 1:
        return f"{name} ends with {what} {value:.4g}."
    equal = [other for other, end in ends if end == value]
    if len(equal) > 1:
        return f"{', '.join(equal[:-1])} and {equal[-1]} end with the same {what}: {value:.4g}."
    second, next_value = ends[1]
    side = "below" if value < next_value else "above"
    is_best = "is best at the end" if _is_loss(metric) or is_accuracy(metric) else "is highest at the end"
    return f"{name} {is_best}: {what} {value:.4g}, {abs(value - next_value):.2g} {side} {second}."


def lead(runs: Sequence[Compared], found: Series, metric: str, chance: float | None) -> list[str]:
    """What qualifies the headline: the last run, chance, different lengths, and that a curve may be one seed."""
    ends, parts = ranked(found, metric), []
    if len(ends) > 2:
        parts.append(f"Last of {len(ends)} is {ends[-1][0]} with {ends[-1][1]:.4g}.")
    if chance is not None:
        parts.append(f"Chance is {chance:.2g}.")
    steps = sorted({points[-1][0] for points in found.values()})
    if len(steps) > 1:
        parts.append(f"The curves end at different steps, from {steps[0]:,} to {steps[-1]:,}.")
    if len(ends) > 1 and not any("seeds" in run.cells for run in runs):
        parts.append("Each curve is one run: with other seeds the order may differ (`--average` averages seeds).")
    return [" ".join(parts)] if parts else []


def _compact(runs: Sequence[Compared], found: Series, metric: str) -> Grid:
    """The runs with a curve, best first, then the others."""
    cells = {run.name: run.cells for run in runs}
    columns = [name for name in COMPACT if any(run.cells.get(name) not in (None, "", run.name) for run in runs)]
    headers = ["run", "at the end", "best", "at step", *columns]
    rows = []
    for name, value in ranked(found, metric):
        step, best = min(found[name], key=lambda point: point[1] if _is_loss(metric) else -point[1])
        rows.append([name, f"{value:.4g}", f"{best:.4g}", f"{step:,}", *(cells[name].get(x, "") for x in columns)])
    for run in runs:
        if run.name not in found:
            rows.append([run.name, "", "", "", *(run.cells.get(x, "") for x in columns)])
    words = ("run", "mechanism", "status")
    note = f"At the end and best: {_named(metric)}."
    return Grid("Runs, the best first", headers, rows, [x for x in headers if x not in words], note)


def _whole(runs: Sequence[Compared]) -> Grid:
    columns = list(dict.fromkeys(column for run in runs for column in run.cells))
    rows = [[run.name, *(run.cells.get(column, "") for column in columns)] for run in runs]
    return Grid("All columns of varla compare", ["run", *columns], rows)


def _differences(runs: Sequence[Compared]) -> Grid | None:
    """The settings that not all runs share, a row each; None if they share all."""
    flat = [dict(_flat(run.settings)) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [[name, *(each.get(name, "") for each in flat)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Grid("Settings that differ", ["setting", *(run.name for run in runs)], rows) if rows else None


def _points(found: Series, metric: str) -> Grid:
    """Some points of every curve, the last among them."""
    rows = []
    for name, points in found.items():
        kept = points[::-1][:: -(-len(points) // _MOST_POINTS)][::-1]
        rows += [[name, f"{step:,}", f"{value:.4g}"] for step, value in kept]
    note = f"At most {_MOST_POINTS} points a run; all are in its metrics."
    return Grid("Points of the curves", ["run", "step", axis_title(metric)], rows, ["step", axis_title(metric)], note)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)))
    return found


def _named(metric: str) -> str:
    """The metric in a sentence: accuracy, if there is only one evaluation."""
    return "accuracy" if metric == EVAL else axis_title(metric)


def _is_loss(metric: str) -> bool:
    """Whether less is better."""
    return any(word in metric for word in ("loss", "bits", "perplexity"))
