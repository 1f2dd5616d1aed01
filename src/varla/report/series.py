"""What charts and text plots of learning curves share: points by run, colours, the title of the axis."""

from collections.abc import Mapping, Sequence
from typing import Any

from varla.runs.metrics import eval_name, is_eval

# Okabe and Ito's palette, safe for all colour vision. Yellow is last because it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

LARGEST = 1e300
Series = dict[str, list[tuple[int, float]]]


def series(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> Series:
    """(step, value) of all values logged as `metric`, by run. Non-finite values and runs without values are left out.

    `runs` maps a run's label to its metrics, as `Run.metrics()` gives them. If no run has a value, a ValueError.
    """
    found = {
        label: [(entry["step"], entry[metric]) for entry in entries if _is_number(entry.get(metric))]
        for label, entries in runs.items()
        if metric != "step"
    }
    if not any(found.values()):
        logged = sorted({key for entries in runs.values() for entry in entries for key in entry} - {"step"})
        raise ValueError(f"no run has logged {metric!r} (logged: {', '.join(logged) or 'nothing yet'})")
    return {label: points for label, points in found.items() if points}


def _is_number(value: object) -> bool:
    """Whether a value can be drawn. Differences of larger numbers overflow."""
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def is_accuracy(metric: str) -> bool:
    """Whether the metric is an accuracy, between 0 and 1."""
    return is_eval(metric) or metric == "accuracy"


def axis_title(metric: str) -> str:
    """The metric in words."""
    return f"accuracy ({eval_name(metric)})" if is_eval(metric) else metric
