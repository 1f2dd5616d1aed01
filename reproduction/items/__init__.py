"""All items, in the order of the paper. A new item is a module with an `ITEM`, and one line here.

Items share four modules: `recurrence` (random trajectories), `propositions` (tests of the theory), `norms` (norms of a
model's memory) and `timing`.
"""

from collections.abc import Sequence

from reproduction.claims import Item
from reproduction.items import (
    ablation,
    capacity,
    complexity,
    copying,
    fair,
    gradients,
    jacobian,
    latency,
    long_context,
    ood,
    overload,
    rls,
    stability,
    theory,
    training_log,
)
from varla.arguments import refuse_unknown

ITEMS: tuple[Item, ...] = (
    copying.ITEM,
    capacity.ITEM,
    long_context.ITEM,
    training_log.ITEM,
    overload.ITEM,
    ood.ITEM,
    ablation.ITEM,
    stability.ITEM,
    jacobian.ITEM,
    gradients.ITEM,
    theory.ITEM,
    latency.ITEM,
    complexity.ITEM,
    rls.ITEM,
    fair.ITEM,
)


def choose(names: Sequence[str]) -> list[Item]:
    """The items of these names; all if there are no names. An unknown name is an error that lists the known ones."""
    by_name = {item.name: item for item in ITEMS}
    for name in names:
        refuse_unknown("item", name, by_name)
    return [by_name[name] for name in dict.fromkeys(names)] or list(ITEMS)
