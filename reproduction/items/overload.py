"""P9: more pairs than a head has dimensions, after 1000 steps, and what more steps change."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import Claim, Figure, Finding, Item, Judge
from reproduction.items import capacity, training_log
from reproduction.protocol import (
    FAST,
    MECHANISMS,
    Why,
    accuracy_claim,
    by_x,
    elsewhere,
    made,
    margin,
    paper_points,
    paper_runs,
    sample,
)
from reproduction.records import Results, need
from reproduction.runs import Preset, Train
from reproduction.verdicts import NOT_REPRODUCED, REPRODUCED

STEPS = 1000
# The table of full results of the capacity curve: seed 42, 1000 steps.
PAPER = {
    "softmax": {8: 0.152, 16: 0.091, 24: 0.070, 32: 0.057, 48: 0.043},
    "linear": {8: 0.150, 16: 0.091, 24: 0.069, 32: 0.056, 48: 0.043},
    "deltanet-paper": {8: 0.965, 16: 0.009, 24: 0.007, 32: 0.008, 48: 0.008},
    "vla": {8: 0.997, 16: 0.990, 24: 0.994, 32: 0.623, 48: 0.044},
}


def seeds(preset: Preset, mechanism: str, n: int) -> list[Train | None]:
    """Training runs of 1000 steps, one per seed."""
    return paper_runs(preset, mechanism, {"name": "mqar", "n": n}, steps=STEPS)


def fast(preset: Preset, mechanism: str, n: int) -> list[Train | None]:
    """The same with learning rate 1e-3, to tell the effect of the rate from that of the steps."""
    return paper_runs(preset, mechanism, {"name": "mqar", "n": n}, steps=STEPS, train={"lr": FAST})


# What 1000 steps are enough for, according to the paper.
LEARNT = [(name, n) for name, values in PAPER.items() for n, paper in values.items() if paper > 0.2]


def why(mechanism: str, n: int) -> Why | None:
    """For those: the accuracy at a larger learning rate and after more steps."""
    if (mechanism, n) not in LEARNT:
        return None
    return elsewhere(
        {
            f"with a learning rate of {FAST:g} instead of 3e-4": partial(fast, mechanism=mechanism, n=n),
            "after 3000 steps": partial(capacity.seeds, mechanism=mechanism, n=n),
        }
    )


def runs(preset: Preset) -> Sequence[Train]:
    """All mechanisms at the table's n, and longer runs, which the capacity curve and the training logs share."""
    short = [each for name, values in PAPER.items() for n in values for each in seeds(preset, name, n)]
    other = [each for name, n in LEARNT for each in (*fast(preset, name, n), *capacity.seeds(preset, name, n))]
    return made([*short, *training_log.seeds(preset, "vla", 24), *other])


def judge_steps(most_gain: float) -> Judge:
    """Whether 2000 steps change the accuracy of 1000 steps by at most `most_gain`."""

    def judge(results: Results, preset: Preset) -> Finding:
        short = need(sample(results, seeds(preset, "vla", 24)))
        long = need(sample(results, training_log.seeds(preset, "vla", 24)))
        gain = long.mean - short.mean
        most = sample(results, capacity.seeds(preset, "vla", 24))
        more = "" if most is None else f", {most.mean:.3f} after 3000"
        note = f"accuracy {short.mean:.3f} after 1000 steps, {long.mean:.3f} after 2000{more}"
        quick = sample(results, fast(preset, "vla", 24))
        note += "" if quick is None or preset.quick else f"; {quick.mean:.3f} after 1000 with learning rate {FAST:g}"
        verdict = REPRODUCED if abs(gain) <= most_gain and short.mean >= 0.95 else NOT_REPRODUCED
        return Finding(verdict, gain, count=len(short.values), note=note)

    return judge


CLAIMS = [
    *(
        accuracy_claim(
            f"P9-overload-{mechanism}-{n}",
            "table of full capacity results, 1000 steps, one seed",
            f"{mechanism} recalls n = {n} pairs with accuracy {paper:g} after {STEPS} steps",
            paper,
            margin(paper),
            mechanism,
            partial(seeds, mechanism=mechanism, n=n),
            why=why(mechanism, n),
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
        decide=judge_steps(0.05),
    ),
]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Accuracy against n after 1000 steps."""
    ours = by_x(results, {(name, n): seeds(preset, name, n) for name in MECHANISMS for n in PAPER[name]})
    points = [*paper_points(PAPER), *ours]
    return [Figure("overload", f"Recall after {STEPS} steps", "pairs n", "accuracy", points, log_x=True)]


ITEM = Item(
    name="overload",
    number="P9",
    title="Overload, and the effect of the step count",
    about=(
        "The paper's table beyond capacity: 1000 steps, with one seed in the paper and with all seeds here. Accuracy "
        "rises late and suddenly, so 1000 steps are often too few at this learning rate."
    ),
    claims=CLAIMS,
    runs=runs,
    figures=figures,
)
