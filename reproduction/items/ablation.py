"""P11: what each part of VLA contributes, including the row that the authors only predicted."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from reproduction.claims import MISSING, Claim, Finding, Item, Judge, Table
from reproduction.items import capacity, overload
from reproduction.protocol import accuracy_claim, made, paper_runs, protocol, sample
from reproduction.records import Results, need
from reproduction.runs import Preset, Train
from reproduction.verdicts import FALSE, NOT_REPRODUCED, REPRODUCED
from varla.runs.outcomes import DIVERGED

SHORT, LONG = 1000, 3000
FIXED = {"update_penalty": False}  # A stays I / lambda0 = 10 I
PAIRS = (8, 16, 24, 48)
HEAD_DIMS = (32, 64, 96, 128)
# Variants beyond the paper's table, at 16 and 24 pairs, 3000 steps.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "gain projection": {"gain": "projection"},
    "gain raw": {"gain": "raw"},
    "u of unit length": {"penalty_scale": 1.0},
    "no refresh": {"refresh_every": None},
    "no normaliser": {"normalizer": False},
    "no output norm": {"output_norm": "none"},
}
VARIANT_PAIRS = (16, 24)


def seeds(preset: Preset, n: int, layer: Mapping[str, Any], steps: int = LONG) -> list[Train | None]:
    """VLA with other layer options, one run per seed."""
    return paper_runs(preset, "vla", {"name": "mqar", "n": n}, steps=steps, layer=layer)


def linear(preset: Preset, n: int) -> list[Train | None]:
    """Linear attention with the output norm that VLA has, so that the norm makes no difference."""
    return paper_runs(preset, "linear", {"name": "mqar", "n": n}, layer={"output_norm": "layer"})


def bare_keys(preset: Preset, head_dim: int) -> list[Train | None]:
    """VLA without key normalisation at one head dimension, 16 pairs."""
    return seeds(preset, 16, {"normalize_key": False, "head_dim": head_dim}, SHORT)


def runs(preset: Preset) -> Sequence[Train]:
    """The table's rows and the variants. Full VLA and the baselines are runs of `capacity` and `overload`."""
    fixed = [each for n in PAIRS for steps in (SHORT, LONG) for each in seeds(preset, n, FIXED, steps)]
    bare = [each for size in HEAD_DIMS for each in bare_keys(preset, size)]
    other = [each for x in VARIANTS.values() for n in VARIANT_PAIRS for each in seeds(preset, n, x)]
    rows = [each for name in overload.PAPER for n in (16, 48) for each in overload.seeds(preset, name, n)]
    rows += overload.fast(preset, "vla", 16)
    full = [each for n in PAIRS for every in (capacity.seeds(preset, "vla", n), linear(preset, n)) for each in every]
    return made([*fixed, *bare, *other, *rows, *full])


def judge_fixed(results: Results, preset: Preset) -> Finding:
    """Whether VLA with A fixed is linear attention: one n where they differ is a counter-example."""
    found = []
    for n in PAIRS:
        fixed = sample(results, seeds(preset, n, FIXED))
        other = sample(results, linear(preset, n))
        if fixed is not None and other is not None:
            found.append((abs(fixed.mean - other.mean), n, fixed, other))
    if not found:
        return MISSING
    gap, _, fixed, _ = max(found, key=lambda each: each[0])
    if gap <= 0.1 and len(found) < len(PAIRS):
        return MISSING  # one counter-example is enough, but only all n show that there is none
    note = "; ".join(f"n = {n}: A fixed {x.mean:.3f}, linear {y.mean:.3f}" for _, n, x, y in found)
    note = protocol(preset, f"both with the output norm; {note}")
    return fixed.finding(FALSE if gap > 0.1 else REPRODUCED, note)


def judge_needed(results: Results, preset: Preset) -> Finding:
    """Whether updating A helps: full VLA against A fixed, at the n with the largest gain."""
    found = []
    for n in PAIRS:
        full, fixed = sample(results, capacity.seeds(preset, "vla", n)), sample(results, seeds(preset, n, FIXED))
        if full is not None and fixed is not None:
            found.append((full.mean - fixed.mean, n, full, fixed))
    if not found:
        return MISSING
    gap = max(each[0] for each in found)
    if gap <= 0.1 and len(found) < len(PAIRS):
        return MISSING
    note = "; ".join(f"n = {n}: full {x.mean:.3f}, A fixed {y.mean:.3f}" for _, n, x, y in found)
    return Finding(REPRODUCED if gap > 0.1 else NOT_REPRODUCED, gap, count=len(preset.seeds), note=note)


def judge_bare(head_dim: int) -> Judge:
    """Whether training without key normalisation diverges."""

    def judge(results: Results, preset: Preset) -> Finding:
        found = [need(results.get(each)) for each in bare_keys(preset, head_dim)]
        right = need(sample(results, bare_keys(preset, head_dim)))
        ended = [each for each in found if each["status"] == DIVERGED]
        note = f"{len(ended)} of {len(found)} runs diverged; accuracy {right.mean:.3f}"
        if ended:
            note += f"; {ended[0]['message']}"
        share = len(ended) / len(found)
        return Finding(REPRODUCED if share >= 0.5 else NOT_REPRODUCED, share, count=len(found), note=note)

    return judge


def _row(name: str, n: int, paper: float) -> Claim:
    every, why = partial(overload.seeds, mechanism=name, n=n), overload.why(name, n)
    said = f"{name}: accuracy {paper:g} at n = {n}"
    return accuracy_claim(f"P11-{name}-{n}", "table of ablations, 1000 steps", said, paper, 0.03, name, every, why=why)


CLAIMS = [
    _row("vla", 16, 0.990),
    _row("vla", 48, 0.044),
    *(
        accuracy_claim(
            f"P11-fixed-{n}",
            "table of ablations: predicted by the authors, not run",
            f"with A fixed at 10 I, accuracy is about {paper:g} at n = {n} after 1000 steps",
            paper,
            0.03,
            "vla",
            partial(seeds, n=n, layer=FIXED, steps=SHORT),
        )
        for n, paper in ((16, 0.091), (48, 0.043))
    ),
    Claim(
        id="P11-fixed-linear",
        where="ablation text and Remark 1",
        says="fixing A reduces VLA to linear attention",
        paper="the same accuracy",
        rule="false if they differ by more than 0.1 at any n, both with the output norm (3000 steps)",
        decide=judge_fixed,
    ),
    Claim(
        id="P11-penalty-needed",
        where="ablation text",
        says="the penalty geometry, not just the residual error, is the source of the improvement",
        paper="A matters",
        rule="reproduced if updating A gains more than 0.1 at some n (3000 steps)",
        decide=judge_needed,
    ),
    *(
        Claim(
            id=f"P11-bare-keys-{size}",
            where="table of ablations and its text",
            says=f"without key normalisation the loss becomes NaN at head dimension {size}",
            paper="NaN",
            rule="reproduced if at least half of the runs diverge (16 pairs, 1000 steps)",
            decide=judge_bare(size),
        )
        for size in (96, 128)
    ),
    _row("deltanet-paper", 16, 0.009),
    _row("deltanet-paper", 48, 0.008),
    _row("linear", 16, 0.091),
    _row("linear", 48, 0.043),
]


def tables(results: Results, preset: Preset) -> list[Table]:
    """The variants, and head dimensions without key normalisation."""

    def mean(every: Sequence[Train | None]) -> float | None:
        found = sample(results, every)
        return None if found is None else found.mean

    pairs = (8, *VARIANT_PAIRS)
    rows = [("VLA", *(mean(capacity.seeds(preset, "vla", n)) for n in pairs))]
    rows += [("A fixed at 10 I", *(mean(seeds(preset, n, FIXED)) for n in pairs))]
    rows += [(name, *(mean(seeds(preset, n, layer)) for n in pairs)) for name, layer in VARIANTS.items()]
    title = "Accuracy of variants, mean over seeds, 3000 steps (quick preset: 1000 at 1e-3)"
    bare = [(size, mean(bare_keys(preset, size))) for size in HEAD_DIMS]
    return [
        Table(title, ("variant", *(f"n = {n}" for n in pairs)), rows),
        Table("Without key normalisation, 1000 steps", ("head dimension", "accuracy"), bare, "0 where runs diverged"),
    ]


ITEM = Item(
    name="ablation",
    number="P11",
    title="Ablations",
    about=(
        "The paper's table of ablations has a row that was predicted and not run (A fixed), and a row without a number "
        "(no key normalisation). Both are run here. So is what the text leaves open: the gain, the scale of u, the "
        "refresh, the normaliser and the output norm."
    ),
    claims=CLAIMS,
    runs=runs,
    tables=tables,
)
