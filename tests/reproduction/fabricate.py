"""Records that were never measured: to see what a judge says of them."""

from collections.abc import Callable, Iterable
from typing import Any

from reproduction.claims import Claim, Finding, Item
from reproduction.records import Results
from reproduction.runs import QUICK, Measure, Run
from varla.runs.outcomes import FINISHED


def results(values: Iterable[tuple[Measure, Any]]) -> Results:
    """Results in which these runs returned these values."""
    return Results({run.key: {"status": FINISHED, "value": value} for run, value in values})


def all_of(item: Item, value: Callable[[Measure], Any]) -> Results:
    """Results of all of an item's runs, each as the function says."""
    return results((run, value(run)) for run in measures(item.runs(QUICK)))


def measures(runs: Iterable[Run]) -> list[Measure]:
    return [run for run in runs if isinstance(run, Measure)]


def claim(item: Item, name: str) -> Claim:
    return next(each for each in item.claims if each.id == name)


def judged(item: Item, name: str, found: Results) -> Finding:
    """What the claim's judge says, at the quick preset."""
    return claim(item, name).judge(found, QUICK)
