"""P8: recall of eight pairs in longer and longer sequences."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import Figure, Item
from reproduction.protocol import MECHANISMS, Why, accuracy_claim, by_x, elsewhere, made, paper_points, paper_runs
from reproduction.records import Results
from reproduction.runs import Preset, Train

LENGTHS = (64, 128, 256, 512)
PAPER = {"vla": 1.0, "softmax": 0.145, "linear": 0.145, "deltanet-paper": 0.01}  # at every length
LATER = 6000  # steps: twice the paper's
LATE = ("deltanet-paper", 64)  # slightly above the paper's number: does it learn the task later?


def seeds(preset: Preset, mechanism: str, T: int, steps: int = 3000) -> list[Train | None]:
    """Training runs at one length, one per seed."""
    task = {"name": "mqar", "n": 8, "seq_len": T}
    return paper_runs(preset, mechanism, task, steps=steps)


def why(mechanism: str, T: int) -> Why | None:
    """The accuracy after more steps."""
    if (mechanism, T) != LATE:
        return None
    return elsewhere({f"after {LATER} steps": partial(seeds, mechanism=mechanism, T=T, steps=LATER)})


def runs(preset: Preset) -> Sequence[Train]:
    """All mechanisms, lengths and seeds; and one case with twice as many steps."""
    wanted = [each for T in LENGTHS for name in MECHANISMS for each in seeds(preset, name, T)]
    return made([*wanted, *seeds(preset, *LATE, steps=LATER)])


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Accuracy against length."""
    paper = paper_points({name: dict.fromkeys(LENGTHS, y) for name, y in PAPER.items()})
    ours = by_x(results, {(name, T): seeds(preset, name, T) for name in MECHANISMS for T in LENGTHS})
    return [Figure("long-context", "Eight pairs in T tokens", "tokens T", "accuracy", [*paper, *ours], log_x=True)]


ITEM = Item(
    name="long-context",
    number="P8",
    title="Long-context recall",
    about="Eight pairs, then queries up to the end. A longer sequence asks more questions; it holds no more pairs.",
    claims=[
        accuracy_claim(
            f"P8-{mechanism}-{T}",
            "long-context figure",
            f"{mechanism} answers with accuracy {paper:g} at T = {T}, n = 8",
            paper,
            0.03,
            mechanism,
            partial(seeds, mechanism=mechanism, T=T),
            why=why(mechanism, T),
        )
        for mechanism, paper in PAPER.items()
        for T in LENGTHS
    ],
    runs=runs,
    figures=figures,
)
