"""P9: the training log of VLA on recall, 2000 steps, and the table of seeds at n = 24."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import Claim, Figure, Finding, Item, Table
from reproduction.protocol import (
    MECHANISMS,
    Sample,
    accuracy_claim,
    at_least,
    conditions_of,
    curves,
    made,
    paper_points,
    paper_runs,
    protocol,
    sample,
)
from reproduction.records import Results, need
from reproduction.runs import Preset, Train
from reproduction.verdicts import NOT_REPRODUCED, REPRODUCED

STEPS = 2000
PAIRS = (8, 16, 24)
# Accuracy by step, from the table of VLA's training logs (seed 42).
PAPER_LOG = {
    8: {600: 0.163, 800: 0.542, 1000: 0.831, 1200: 0.921, 1400: 0.976, 1600: 0.994, 1800: 1.0, 2000: 1.0},
    16: {600: 0.098, 800: 0.287, 1000: 0.614, 1200: 0.743, 1400: 0.891, 1600: 0.951, 1800: 0.998, 2000: 1.0},
    24: {600: 0.071, 800: 0.198, 1000: 0.487, 1200: 0.608, 1400: 0.743, 1600: 0.867, 1800: 0.994, 2000: 1.0},
}
# The table of seeds at n = 24: mean over 42, 123, 999.
PAPER_SEEDS = {"softmax": 0.081, "linear": 0.074, "deltanet-paper": 0.011, "vla": 1.0}


PAPER_START = 4.21  # the loss at step 0, for all n: ln 67
FEWER = 67  # the vocabulary that this loss implies; the paper states 128


def seeds(preset: Preset, mechanism: str, n: int, vocabulary: int | None = None) -> list[Train | None]:
    """Training runs of 2000 steps, one per seed."""
    task = {"name": "mqar", "n": n, **({} if vocabulary is None else {"vocab_size": vocabulary})}
    return paper_runs(preset, mechanism, task, steps=STEPS, train={"eval_every": 200})


def fewer(preset: Preset, n: int) -> list[Train | None]:
    """VLA with the vocabulary that the log's first loss implies; not at the quick preset."""
    return [] if preset.quick else seeds(preset, "vla", n, FEWER)


def runs(preset: Preset) -> Sequence[Train]:
    """VLA at three n, and the other mechanisms at n = 24."""
    found = [each for n in PAIRS for each in (*seeds(preset, "vla", n), *fewer(preset, n))]
    return made([*found, *(each for name in MECHANISMS[:-1] for each in seeds(preset, name, 24))])


def losses(results: Results, runs: Sequence[Train | None]) -> tuple[float, float] | None:
    """First and last training loss, means over seeds; None unless all runs have a record."""
    found = [results.curve(each, "loss") for each in runs]
    if not found or not all(found):
        return None
    return tuple(sum(points[i][1] for points in found) / len(found) for i in (0, -1))  # type: ignore[return-value]


def start(results: Results, preset: Preset) -> str:
    """What the log's first loss implies about its data, for a note."""
    many, few = losses(results, seeds(preset, "vla", 8)), losses(results, fewer(preset, 8))
    if preset.quick or many is None:
        return ""
    said = f"; the paper's log starts at {PAPER_START} = ln {FEWER}; with 128 tokens it starts at {many[0]:.2f}"
    return said if few is None else f"{said}; with {FEWER} tokens it starts at {few[0]:.2f} and ends at {few[1]:.2f}"


def steepness(results: Results, runs: Sequence[Train | None]) -> list[float]:
    """Steps from accuracy 0.2 to 0.9, for the runs that reached both."""
    widths = []
    for each in runs:
        points = results.curve(each)
        begin = next((step for step, y in points if y > 0.2), None)
        end = next((step for step, y in points if y > 0.9), None)
        if begin is not None and end is not None:
            widths.append(float(end - begin))
    return widths


def judge_loss(results: Results, preset: Preset) -> Finding:
    """Whether the loss stays well above zero once accuracy is 1, as in the paper's log."""
    right = need(sample(results, seeds(preset, "vla", 8)))
    last = Sample(tuple(need(results.curve(each, "loss") or None)[-1][1] for each in seeds(preset, "vla", 8)))
    note = protocol(preset, f"training loss at the last step; accuracy is {right.mean:.3f}{start(results, preset)}")
    good = 0.4 <= last.mean <= 1.0 and right.mean >= 0.99
    return last.finding(REPRODUCED if good else NOT_REPRODUCED, note)


def judge_jump(results: Results, preset: Preset) -> Finding:
    """How many steps training takes from accuracy 0.2 to 0.9 at n = 24; the paper's log climbs slowly."""
    asked = seeds(preset, "vla", 24)
    need(sample(results, asked))
    widths = steepness(results, asked)
    if not widths:
        return Finding(NOT_REPRODUCED, "never above 0.9", count=len(preset.seeds), note="evaluated every 200 steps")
    note = "steps from accuracy 0.2 to 0.9, for runs that reached both, evaluated every 200 steps"
    every = [
        width
        for n in PAIRS
        for runs in (seeds(preset, "vla", n), fewer(preset, n))
        for width in steepness(results, runs)
    ]
    if not preset.quick:
        note += f"; the slowest of {len(every)} runs at all n took {max(every):.0f}"
    width = Sample(tuple(widths))
    return width.finding(REPRODUCED if width.mean >= 600 else NOT_REPRODUCED, note)


CLAIMS = [
    *(
        Claim(
            id=f"P9-log-{n}",
            where="table of VLA's training logs",
            says=f"VLA reaches accuracy 1.000 at n = {n} in {STEPS} steps",
            paper=1.0,
            rule="mean over seeds at least 0.99",
            decide=at_least(partial(seeds, mechanism="vla", n=n), 0.99, conditions=conditions_of("vla")),
        )
        for n in PAIRS
    ),
    Claim(
        id="P9-log-loss",
        where="table of VLA's training logs, n = 8",
        says="the loss levels off at 0.68 though accuracy is 1.000",
        paper=0.68,
        rule="reproduced if the last training loss is between 0.4 and 1.0 with accuracy at least 0.99",
        decide=judge_loss,
    ),
    Claim(
        id="P9-log-climb",
        where="table of VLA's training logs, n = 24",
        says="accuracy climbs gradually, from 0.198 at step 800 to 0.867 at step 1600",
        paper=800.0,
        rule="reproduced if it takes at least 600 steps from accuracy 0.2 to 0.9",
        decide=judge_jump,
    ),
    *(
        accuracy_claim(
            f"P9-seeds-{mechanism}",
            "table of seeds, n = 24",
            f"{mechanism} has accuracy {paper:g} over three seeds after {STEPS} steps",
            paper,
            0.03,
            mechanism,
            partial(seeds, mechanism=mechanism, n=24),
        )
        for mechanism, paper in PAPER_SEEDS.items()
    ),
]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """VLA's learning curves beside the paper's."""
    paper = paper_points({f"n = {n}": log for n, log in PAPER_LOG.items()})
    ours = curves(results, {f"n = {n}": seeds(preset, "vla", n) for n in PAIRS})
    return [Figure("training-log", "VLA learns to recall n pairs", "step", "accuracy", [*paper, *ours])]


def tables(results: Results, preset: Preset) -> list[Table]:
    """The accuracy of every seed."""
    rows = [
        (name, *(results.accuracy(each) for each in seeds(preset, name, 24)), PAPER_SEEDS[name]) for name in MECHANISMS
    ]
    headers = ("mechanism", *(f"seed {seed}" for seed in preset.seeds), "paper, mean")
    return [Table(f"n = 24 after {STEPS} steps", headers, rows)]


ITEM = Item(
    name="training-log",
    number="P9",
    title="Training logs and seeds",
    about=(
        "VLA trained for 2000 steps at 8, 16 and 24 pairs, and all four mechanisms at 24 pairs with three seeds. The "
        "paper uses 1000, 2000 or 3000 steps in different places; every number here names its own."
    ),
    claims=CLAIMS,
    runs=runs,
    figures=figures,
    tables=tables,
)
