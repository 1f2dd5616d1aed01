"""What learning curves are drawn from, whatever draws them: points a run, colours, the name of the axis."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Okabe and Ito's palette, told apart with any colour vision; yellow last, since it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

Series = dict[str, list[tuple[int, float]]]


def series(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> Series:
    """(step, value) of everything logged as `metric`, by run. Values that are not finite are left out, and so are runs
    without any; none at all is a ValueError.

    `runs` maps a run's label to its metrics, as `Run.metrics()` gives them.
    """
    found = {
        label: [(entry["step"], entry[metric]) for entry in entries if metric in entry and math.isfinite(entry[metric])]
        for label, entries in runs.items()
    }
    if not any(found.values()):
        logged = sorted({key for entries in runs.values() for entry in entries for key in entry} - {"step"})
        raise ValueError(f"no run has logged {metric!r} (logged: {', '.join(logged) or 'nothing yet'})")
    return {label: points for label, points in found.items() if points}


def is_accuracy(metric: str) -> bool:
    """Whether it lies between 0 and 1."""
    return metric.startswith("eval/") or metric == "accuracy"


def axis_title(metric: str) -> str:
    """The metric in words."""
    return f"accuracy ({metric.removeprefix('eval/')})" if metric.startswith("eval/") else metric
