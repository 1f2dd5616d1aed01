"""What charts and text plots of learning curves share: points by run, colours, the title of the axis."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from varla.runs.metrics import eval_name, is_eval

# A mechanism has the same colour in every chart. The colours are Okabe and Ito's, safe for all colour vision, with grey
# and purple in the place of black and yellow: all of them are seen on white and on black.
COLOURS: Mapping[str, str] = {
    "gated-vla": "#D55E00",
    "vla": "#E69F00",
    "gated-deltanet": "#0072B2",
    "deltanet": "#56B4E9",
    "deltanet-paper": "#CC79A7",
    "linear": "#009E73",
    "softmax": "#808080",
    "mesa": "#9467BD",
}

LARGEST = 1e300
SMALLEST = 1e-300
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


def colours(labels: Sequence[str]) -> list[str]:
    """A colour for each label: the mechanism's for its name, or else for the first label that begins with its name.

    Further runs of a mechanism, and labels without one, take the other colours in turn.
    """
    owner = {name: name for name in COLOURS if name in labels}
    for label in labels:
        if (name := _mechanism(label)) is not None:
            owner.setdefault(name, label)
    found = {label: COLOURS[name] for name, label in owner.items()}
    free = cycle([colour for name, colour in COLOURS.items() if name not in owner] or COLOURS.values())
    return [found[label] if label in found else next(free) for label in labels]


def _mechanism(label: str) -> str | None:
    """The mechanism that a label such as "gated-vla, A fixed" or "vla-mqar-n8" begins with, the longest that fits."""
    found = [name for name in COLOURS if label.startswith(name) and not label[len(name) : len(name) + 1].isalnum()]
    return max(found, key=len, default=None)


def _is_number(value: object) -> bool:
    """Whether a value can be drawn. Differences of larger numbers overflow."""
    return isinstance(value, (int, float)) and abs(value) < LARGEST


def limits(values: Sequence[float], metric: str, chance: float | None = None) -> tuple[float, float]:
    """The lowest and the highest value of an axis that fits the values, both round numbers.

    `chance` is on the axis too, unless that would more than double it.
    """
    low, high = min(values), max(values)
    bounded = is_accuracy(metric) and low >= 0 and high <= 1
    if high - low <= max(1e-9 * max(abs(low), abs(high)), SMALLEST):
        margin = abs(low) / 2 if abs(low) > SMALLEST else 0.5
        low, high = low - margin, high + margin
    if chance is not None and low - (high - low) <= chance <= high + (high - low):
        low, high = min(low, chance), max(high, chance)
    power = 10.0 ** math.floor(math.log10((high - low) / 10))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= (high - low) / 10 * (1 - 1e-9))
    # Rounded first: 0.3 / 0.1 is a little below 3.
    low, high = math.floor(round(low / step, 6)) * step, math.ceil(round(high / step, 6)) * step
    return (max(low, 0.0), min(high, 1.0)) if bounded else (low, high)


def is_accuracy(metric: str) -> bool:
    """Whether the metric is an accuracy, between 0 and 1."""
    return is_eval(metric) or metric == "accuracy"


def axis_title(metric: str) -> str:
    """The metric in words."""
    return f"accuracy ({eval_name(metric)})" if is_eval(metric) else metric
