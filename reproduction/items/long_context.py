"""P8: eight pairs in ever longer sequences."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import Claim, Figure, Item
from reproduction.protocol import MECHANISMS, Why, by_x, conditions_of, elsewhere, made, paper_run, within
from reproduction.records import Results
from reproduction.runs import Preset, Train

LENGTHS = (64, 128, 256, 512)
PAPER = {"vla": 1.0, "softmax": 0.145, "linear": 0.145, "deltanet-paper": 0.01}  # at every length
LATER = 6000  # steps: twice the paper's
LATE = ("deltanet-paper", 64)  # what is above the paper's number, a little: on its way to learning the task?


def seeds(preset: Preset, mechanism: str, T: int, steps: int = 3000) -> list[Train | None]:
    """Training runs at one length, with every seed."""
    task = {"name": "mqar", "n": 8, "seq_len": T}
    return [paper_run(preset, mechanism, seed, task, steps=steps) for seed in preset.seeds]


def why(mechanism: str, T: int) -> Why | None:
    """What more steps give."""
    if (mechanism, T) != LATE:
        return None
    return elsewhere({f"after {LATER} steps": partial(seeds, mechanism=mechanism, T=T, steps=LATER)})


def runs(preset: Preset) -> Sequence[Train]:
    """All mechanisms, lengths and seeds; and twice as many steps where that is a question."""
    wanted = [each for T in LENGTHS for name in MECHANISMS for each in seeds(preset, name, T)]
    return made([*wanted, *seeds(preset, *LATE, steps=LATER)])


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Accuracy against length."""
    paper = [{"x": T, "y": y, "series": name, "source": "paper"} for name, y in PAPER.items() for T in LENGTHS]
    ours = by_x(results, {(name, T): seeds(preset, name, T) for name in MECHANISMS for T in LENGTHS})
    return [Figure("long-context", "Eight pairs in T tokens", "tokens T", "accuracy", [*paper, *ours], log_x=True)]


ITEM = Item(
    name="long-context",
    number="P8",
    title="Long-context recall",
    about="Eight pairs, then queries to the end: more tokens mean more questions, not more to remember.",
    claims=[
        Claim(
            id=f"P8-{mechanism}-{T}",
            where="long-context figure",
            says=f"{mechanism} answers with accuracy {paper:g} at T = {T}, n = 8",
            paper=paper,
            rule="mean over seeds within 0.03 of the paper's",
            judge=within(
                partial(seeds, mechanism=mechanism, T=T),
                paper,
                0.03,
                conditions=conditions_of(mechanism),
                why=why(mechanism, T),
            ),
        )
        for mechanism, paper in PAPER.items()
        for T in LENGTHS
    ],
    runs=runs,
    figures=figures,
)
