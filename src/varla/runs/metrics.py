"""The names of logged metrics. An accuracy on fresh data is `eval`, or `eval/NAME` if there are several evaluations."""

from collections.abc import Iterable, Mapping
from typing import Any

EVAL = "eval"
_OLD_EVAL = "eval/eval"  # what earlier runs and records call it


def eval_metric(name: str) -> str:
    """The metric of the evaluation called `name`."""
    return EVAL if name == EVAL else f"{EVAL}/{name}"


def is_eval(metric: str) -> bool:
    """Whether the metric is the accuracy of an evaluation."""
    return metric == EVAL or metric.startswith(f"{EVAL}/")


def eval_name(metric: str) -> str:
    """The name of the evaluation that the metric is of."""
    return metric.removeprefix(f"{EVAL}/")


def current(metric: str) -> str:
    """Today's name of a metric, which may have its old name."""
    return EVAL if metric == _OLD_EVAL else metric


def with_current_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Values by metric, as an earlier run may have written them, under today's names."""
    return {current(metric): value for metric, value in metrics.items()}


def newest(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest value of every metric, from what was logged step by step."""
    return {metric: value for entry in entries for metric, value in entry.items()}
