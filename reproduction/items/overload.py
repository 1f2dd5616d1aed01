"""P9: more pairs than a head has dimensions, after 1000 steps, and what more steps change."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import MISSING, NOT_REPRODUCED, REPRODUCED, Claim, Figure, Finding, Item, Judge
from reproduction.items import capacity, training_log
from reproduction.protocol import (
    FAST,
    MECHANISMS,
    Why,
    by_x,
    conditions_of,
    elsewhere,
    made,
    paper_run,
    sample,
    within,
)
from reproduction.records import Results
from reproduction.runs import Preset, Train

STEPS = 1000
# The table of full results of the capacity curve: seed 42, 1000 steps.
PAPER = {
    "softmax": {8: 0.152, 16: 0.091, 24: 0.070, 32: 0.057, 48: 0.043},
    "linear": {8: 0.150, 16: 0.091, 24: 0.069, 32: 0.056, 48: 0.043},
    "deltanet-paper": {8: 0.965, 16: 0.009, 24: 0.007, 32: 0.008, 48: 0.008},
    "vla": {8: 0.997, 16: 0.990, 24: 0.994, 32: 0.623, 48: 0.044},
}


def seeds(preset: Preset, mechanism: str, n: int) -> list[Train | None]:
    """Training runs of 1000 steps, with every seed."""
    return [paper_run(preset, mechanism, seed, {"name": "mqar", "n": n}, steps=STEPS) for seed in preset.seeds]


def fast(preset: Preset, mechanism: str, n: int) -> list[Train | None]:
    """The same with a learning rate of 1e-3: is it the rate, or the number of steps?"""
    task = {"name": "mqar", "n": n}
    return [paper_run(preset, mechanism, seed, task, steps=STEPS, train={"lr": FAST}) for seed in preset.seeds]


# What the paper says is learnt in 1000 steps.
LEARNT = [(name, n) for name, values in PAPER.items() for n, paper in values.items() if paper > 0.2]


def why(mechanism: str, n: int) -> Why | None:
    """For those: what a larger rate and more steps give."""
    if (mechanism, n) not in LEARNT:
        return None
    return elsewhere(
        {
            f"with a learning rate of {FAST:g} instead of 3e-4": partial(fast, mechanism=mechanism, n=n),
            "after 3000 steps": partial(capacity.seeds, mechanism=mechanism, n=n),
        }
    )


def runs(preset: Preset) -> Sequence[Train]:
    """All mechanisms at the table's n; the longer runs belong to the capacity curve and the training logs."""
    short = [each for name, values in PAPER.items() for n in values for each in seeds(preset, name, n)]
    other = [each for name, n in LEARNT for each in (*fast(preset, name, n), *capacity.seeds(preset, name, n))]
    return made([*short, *training_log.seeds(preset, "vla", 24), *other])


def judge_steps(least: float) -> Judge:
    """Whether 1000 steps already give what 2000 do, less `least`."""

    def judge(results: Results, preset: Preset) -> Finding:
        short = sample(results, seeds(preset, "vla", 24))
        long = sample(results, training_log.seeds(preset, "vla", 24))
        if short is None or long is None:
            return MISSING
        gain = long.mean - short.mean
        most = sample(results, capacity.seeds(preset, "vla", 24))
        more = "" if most is None else f", {most.mean:.3f} after 3000"
        note = f"accuracy {short.mean:.3f} after 1000 steps, {long.mean:.3f} after 2000{more}"
        quick = sample(results, fast(preset, "vla", 24))
        note += "" if quick is None or preset.quick else f"; with a rate of {FAST:g}, {quick.mean:.3f} after 1000"
        verdict = REPRODUCED if abs(gain) <= least and short.mean >= 0.95 else NOT_REPRODUCED
        return Finding(verdict, gain, count=len(short.values), note=note)

    return judge


def margin(paper: float) -> float:
    """As for the capacity curve."""
    return capacity.margin(paper)


CLAIMS = [
    *(
        Claim(
            id=f"P9-overload-{mechanism}-{n}",
            where="table of full capacity results, 1000 steps, one seed",
            says=f"{mechanism} recalls n = {n} pairs with accuracy {paper:g} after {STEPS} steps",
            paper=paper,
            rule=f"mean over seeds within {margin(paper):.2g} of the paper's",
            judge=within(
                partial(seeds, mechanism=mechanism, n=n),
                paper,
                margin(paper),
                conditions=conditions_of(mechanism),
                why=why(mechanism, n),
            ),
        )
        for mechanism, values in PAPER.items()
        for n, paper in values.items()
    ),
    Claim(
        id="P9-steps",
        where="table comparing 1000 and 2000 steps, n = 24",
        says="VLA gains 0.006 from 1000 steps (0.994) to 2000 (1.000)",
        paper=0.006,
        rule="reproduced if accuracy after 1000 steps is at least 0.95 and 2000 change it by at most 0.05",
        judge=judge_steps(0.05),
    ),
]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Accuracy against n after 1000 steps."""
    paper = [
        {"x": n, "y": y, "series": name, "source": "paper"} for name, values in PAPER.items() for n, y in values.items()
    ]
    ours = by_x(results, {(name, n): seeds(preset, name, n) for name in MECHANISMS for n in PAPER[name]})
    return [Figure("overload", f"Recall after {STEPS} steps", "pairs n", "accuracy", [*paper, *ours], log_x=True)]


ITEM = Item(
    name="overload",
    number="P9",
    title="Overload, and the effect of the step count",
    about=(
        "The paper's table past capacity, trained for 1000 steps with one seed there and with all seeds here. Accuracy "
        "jumps late and suddenly, so that 1000 steps are often too few at this learning rate."
    ),
    claims=CLAIMS,
    runs=runs,
    figures=figures,
)
