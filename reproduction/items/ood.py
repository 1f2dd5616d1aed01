"""P10: recall with keys that were never keys in training."""

from collections.abc import Sequence
from functools import partial

from reproduction.claims import MISSING, Claim, Figure, Finding, Item, Judge
from reproduction.protocol import FAST, MECHANISMS, Why, accuracy_claim, by_x, elsewhere, made, paper_runs, sample
from reproduction.records import Results, need
from reproduction.runs import Preset, Train
from reproduction.verdicts import NOT_REPRODUCED, REPRODUCED

WHERE = "table of out-of-distribution keys"
PAIRS = (8, 16, 24)
SHORT, LONG = 1000, 3000
# (accuracy on keys seen in training, accuracy on new keys), seed 42, 1000 steps.
PAPER = {
    "softmax": {8: (0.146, 0.144), 16: (0.094, 0.085), 24: (0.070, 0.062)},
    "linear": {8: (0.146, 0.148), 16: (0.093, 0.086), 24: (0.070, 0.064)},
    "deltanet-paper": {8: (0.104, 0.100), 16: (0.008, 0.008), 24: (0.007, 0.008)},
    "vla": {8: (1.000, 0.945), 16: (1.000, 0.782), 24: (0.999, 0.687)},
}


def seeds(preset: Preset, mechanism: str, n: int, steps: int = SHORT) -> list[Train | None]:
    """Training runs on keys 0 to 63, one per seed."""
    return paper_runs(preset, mechanism, {"name": "mqar-ood", "n": n}, steps=steps)


def fast(preset: Preset, n: int) -> list[Train | None]:
    """VLA for 1000 steps with a learning rate of 1e-3."""
    return paper_runs(preset, "vla", {"name": "mqar-ood", "n": n}, steps=SHORT, train={"lr": FAST})


def runs(preset: Preset) -> Sequence[Train]:
    """All mechanisms with the paper's 1000 steps, and VLA also with 3000 steps and with a larger learning rate."""
    short = [each for name in MECHANISMS for n in PAIRS for each in seeds(preset, name, n)]
    return made([*short, *(each for n in PAIRS for each in (*seeds(preset, "vla", n, LONG), *fast(preset, n)))])


def judge_drop(n: int) -> Judge:
    """Whether VLA loses as much accuracy on new keys as in the paper, once it has learned the seen ones."""
    before, after = PAPER["vla"][n]

    def judge(results: Results, preset: Preset) -> Finding:
        found = MISSING
        for steps in (SHORT, LONG):
            runs = seeds(preset, "vla", n, steps)
            old, new = need(sample(results, runs, "id")), need(sample(results, runs, "ood"))
            learnt, drop = old.mean >= 0.95, old.mean - new.mean
            note = f"seen keys {old.mean:.3f}, new keys {new.mean:.3f}, after {steps} steps"
            verdict = REPRODUCED if learnt and abs(drop - (before - after)) <= 0.1 else NOT_REPRODUCED
            found = Finding(verdict, drop, count=len(new.values), note=note + quicker(results, preset, n))
            if learnt:
                break
        return found

    return judge


def quicker(results: Results, preset: Preset, n: int) -> str:
    """The accuracies at a larger learning rate, for a note."""
    old, new = (sample(results, fast(preset, n), name) for name in ("id", "ood"))
    if preset.quick or old is None or new is None:
        return ""
    return f"; with learning rate {FAST:g}, seen keys {old.mean:.3f}, new keys {new.mean:.3f} after {SHORT} steps"


def why(name: str, n: int) -> Why:
    """The accuracy at a larger learning rate and after more steps, on seen ("id") or new keys ("ood")."""
    others = {
        f"with a learning rate of {FAST:g} instead of 3e-4": partial(fast, n=n),
        f"after {LONG} steps": partial(seeds, mechanism="vla", n=n, steps=LONG),
    }
    return elsewhere(others, name)


def claims() -> list[Claim]:
    """Accuracy on seen and on new keys, and for VLA the drop between them."""
    found = []
    for mechanism, values in PAPER.items():
        for n, pair in values.items():
            for name, kind, paper in zip(("id", "ood"), ("seen", "new"), pair, strict=True):
                said = f"{mechanism}, n = {n}, {kind} keys: accuracy {paper:g} after {SHORT} steps"
                found.append(
                    accuracy_claim(
                        f"P10-{mechanism}-{n}-{name}", WHERE, said, paper, 0.03 if paper < 0.2 else 0.1, mechanism,
                        partial(seeds, mechanism=mechanism, n=n), name, why(name, n) if mechanism == "vla" else None,
                    )
                )  # fmt: skip
    found += [
        Claim(
            id=f"P10-drop-{n}",
            where=WHERE,
            says=f"VLA loses {before - after:.3f} on keys that were never keys in training, n = {n}",
            paper=before - after,
            rule="seen keys reach 0.95 after 1000 or 3000 steps, and the drop is within 0.1 of the paper's",
            decide=judge_drop(n),
        )
        for n, (before, after) in PAPER["vla"].items()
    ]
    return found


def figures(results: Results, preset: Preset) -> list[Figure]:
    """VLA on seen and new keys."""
    paper = [
        {"x": n, "y": y, "series": f"vla, {kind} keys", "source": "paper"}
        for n, pair in PAPER["vla"].items()
        for kind, y in zip(("seen", "new"), pair, strict=True)
    ]
    ours = [
        point
        for steps in (SHORT, LONG)
        for kind, name in (("seen", "id"), ("new", "ood"))
        for point in by_x(
            results, {(f"vla, {kind} keys, {steps} steps", n): seeds(preset, "vla", n, steps) for n in PAIRS}, name
        )
    ]
    return [Figure("ood", "Keys never seen as keys in training", "pairs n", "accuracy", [*paper, *ours])]


ITEM = Item(
    name="ood",
    number="P10",
    title="Out-of-distribution keys",
    about="Models are trained with keys from tokens 0 to 63, and tested with these and with keys from 64 to 126.",
    claims=claims(),
    runs=runs,
    figures=figures,
)
