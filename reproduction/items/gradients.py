"""P13, Corollary 1: how gradients of S grow or shrink on the way back through T tokens."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reproduction.claims import Claim, Figure, Finding, Item, Judge, Table
from reproduction.items.jacobian import DIMENSIONS, FITTED_SCALE, PAPER_V2
from reproduction.items.recurrence import Inputs, draw, trajectory
from reproduction.records import Results
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, REPRODUCED
from varla.ops.algebra import outer

PAPER_GROWTH = {32: 1.7e18, 64: 1.8e28, 96: 6.1e32, 128: 3.7e35}  # the norm to the power of 25
HORIZONS = (25, 100, 400, 1000, 2000)
AS_FITTED = {"feature_map": "identity", "key_scale": FITTED_SCALE}  # inputs that give the paper's norms of one step


def growth(
    d: int, form: str, horizons: Sequence[int], rows: int, seed: int, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """log10 of |dL/dS_0| / |dL/dS_T| after T tokens: for random dL/dS_T, and the maximum over all dL/dS_T.

    G_0 = G_T J_T ... J_1 with J_t = I - a_t k_t^T. The product is rescaled at every token and its scale is kept as a
    logarithm, because unnormalised products overflow within 130 tokens.
    """
    k, a, _ = trajectory(Inputs(d, form, **(options or {})), max(horizons), rows, seed)
    G = torch.stack([draw(10_000 + seed + row, (d, d)) for row in range(rows)])
    product, scale = torch.eye(d, dtype=torch.float64).expand(rows, d, d), torch.zeros(rows, dtype=torch.float64)
    found: dict[str, Any] = {"horizons": list(horizons), "random": [], "greatest": [], "random by seed": []}
    for t in range(max(horizons)):
        product, scale = rescaled(product - outer(a[t], (k[t][:, None] @ product)[:, 0]), scale)
        if t + 1 in horizons:
            whole = torch.log10(torch.linalg.matrix_norm(product, ord=2)) + scale
            ratio = torch.linalg.matrix_norm(G @ product) / torch.linalg.matrix_norm(G)
            random = torch.log10(ratio) + scale
            found["random"].append(float(random.mean()))
            found["random by seed"].append(random.tolist())
            found["greatest"].append(float(whole.max()))
    return found


def rescaled(product: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """product * 10^scale as a product of Frobenius norm 1 and a new scale: [rows, d, d] and [rows]."""
    size = torch.linalg.matrix_norm(product)
    return product / size[:, None, None], scale + torch.log10(size)


def run(preset: Preset, d: int, form: str, **options: Any) -> Measure:
    """Growth at all horizons."""
    given = {"d": d, "form": form, "horizons": list(HORIZONS), "rows": 3 if preset.quick else 8, "seed": 42}
    return Measure(growth, {**given, "options": options})


def normalised(preset: Preset) -> list[Measure]:
    """VLAv3 in every dimension, with and without a feature map; and |u| = 1 and A fixed at the paper's dimension.

    ELU + 1 makes all keys similar. Without it they point everywhere, which is the other extreme.
    """
    every = [run(preset, d, "v3") for d in DIMENSIONS]
    spread = [run(preset, d, "v3", feature_map="identity") for d in DIMENSIONS]
    return [*every, *spread, run(preset, 32, "v3", penalty="unit"), run(preset, 32, "v3", penalty="none")]


def runs(preset: Preset) -> Sequence[Measure]:
    """Normalised; unnormalised as in the text; and unnormalised with inputs that give the paper's norms."""
    rest = [each for d in DIMENSIONS for each in (run(preset, d, "v2"), run(preset, d, "v2", **AS_FITTED))]
    return [*normalised(preset), *rest]


def judge_bound(results: Results, preset: Preset) -> Finding:
    """|dL/dS_0| <= |dL/dS_T| for every gradient."""
    asked = normalised(preset)
    found = [results.need(each) for each in asked]
    most, where = -math.inf, ""
    for each, value in zip(asked, found, strict=True):
        for T, greatest in zip(value["horizons"], value["greatest"], strict=True):
            if greatest > most:
                options = ", ".join(f"{x}" for x in each.arguments["options"].values()) or "elu1, root"
                most, where = greatest, f"d = {each.arguments['d']} ({options}), T = {T}"
    random = max(x for value in found for seeds in value["random by seed"] for x in seeds)
    note = f"largest operator norm of the product, at {where}; random gradients grow by at most {10**random:.3g}"
    return Finding(REPRODUCED if most <= math.log10(1 + 1e-6) else FALSE, 10**most, note=note)


def judge_vanishing(results: Results, preset: Preset) -> Finding:
    """Whether gradients vanish: the share of random gradients left at the longest horizon."""
    usual, spread = (
        [results.need(run(preset, d, "v3", **options)) for d in DIMENSIONS]
        for options in ({}, {"feature_map": "identity"})
    )
    fixed = results.need(run(preset, 32, "v3", penalty="none"))
    left, apart = (10 ** min(value["random"][-1] for value in values) for values in (usual, spread))
    note = (
        f"share of random gradients left after {HORIZONS[-1]} tokens, at the dimension with the least; without a "
        f"feature map, where keys point everywhere, {apart:.1g}; with A fixed {10 ** fixed['random'][-1]:.1g} at d = 32"
    )
    verdict = REPRODUCED if min(left, apart) >= 1e-3 else CONDITIONAL if left >= 1e-3 else FALSE
    return Finding(verdict, left, note=note)


def judge_explosion(d: int) -> Judge:
    """The table's growth after 25 tokens, a power of one step's norm, against the measured product."""

    def judge(results: Results, preset: Preset) -> Finding:
        asked = run(preset, d, "v2", **AS_FITTED)
        found, usual = results.need(asked), results.need(run(preset, d, "v2"))
        i = found["horizons"].index(25)
        seeds = found["random by seed"][i]
        paper = math.log10(PAPER_GROWTH[d])
        close = abs(found["random"][i] - paper) <= 2
        note = (
            f"geometric mean over seeds of random gradients, with the key scale fitted to the paper's norms. The paper "
            f"takes {PAPER_V2[d]:g} to the power of 25 = {PAPER_V2[d] ** 25:.2g}, but each step stretches another "
            f"direction. With ELU + 1 and unit-variance raw keys it is 1e{usual['random'][i]:.0f}"
        )
        verdict = CONDITIONAL if close else NOT_REPRODUCED
        return Finding(verdict, 10 ** found["random"][i], 10 ** min(seeds), 10 ** max(seeds), len(seeds), note)

    return judge


def judge_overflow(results: Results, preset: Preset) -> Finding:
    """Whether float32 overflows without normalisation, in a sequence of 25 tokens (mqar, n = 8), at d = 96."""
    found = results.need(run(preset, 96, "v2"))
    i = found["horizons"].index(25)
    largest = math.log10(torch.finfo(torch.float32).max)
    small = results.value(run(preset, 32, "v2"))
    verdict = CONDITIONAL if found["random"][i] > largest else NOT_REPRODUCED
    at_32 = "" if small is None else f"; it is already 1e{small['random'][i]:.1f} at d_h = 32, so 96 is no threshold"
    note = f"growth of random gradients through 25 tokens, ELU + 1, untrained; float32 ends at 1e{largest:.1f}{at_32}"
    return Finding(verdict, f"1e{found['random'][i]:.1f}", note=note)


def claims() -> list[Claim]:
    """The two halves of the corollary, and the table's growth."""
    return [
        Claim(
            "P13-gradient-bound",
            "Corollary 1",
            "|dL/dS_0| <= |dL/dS_T|: gradients do not explode",
            1.0,
            "false if the product of the steps has an operator norm above 1 + 1e-6 for any horizon, seed or dimension",
            judge_bound,
        ),
        Claim(
            "P13-gradient-vanishing",
            "Corollary 1",
            "gradients do not vanish",
            1.0,
            "at least 0.001 of random gradients is left after 2000 tokens; with conditions, if only with ELU + 1",
            judge_vanishing,
        ),
        *(
            Claim(
                f"P13-growth-25-{d}",
                "Jacobian table, VLAv2",
                f"without normalisation, gradients at d_h = {d} grow by {PAPER_GROWTH[d]:.1e} in 25 steps",
                PAPER_GROWTH[d],
                "with conditions, if within two orders of magnitude on inputs that give the paper's norms of one step",
                judge_explosion(d),
            )
            for d in DIMENSIONS
        ),
        Claim(
            "P13-overflow",
            "section 4.2",
            "without normalisation, training at d_h >= 96 ends in NaN",
            "NaN",
            "with conditions, if gradients of an untrained layer exceed float32 in 25 tokens at d_h = 96",
            judge_overflow,
        ),
    ]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Growth over tokens: random gradients and the operator norm."""
    points: list[dict[str, object]] = []
    for d in DIMENSIONS:
        for label, asked in (
            (f"d = {d}", run(preset, d, "v3")),
            (f"d = {d}, identity", run(preset, d, "v3", feature_map="identity")),
        ):
            found = results.value(asked)
            if found is None:
                continue
            for T, random, greatest in zip(found["horizons"], found["random"], found["greatest"], strict=True):
                points.append({"x": T, "y": random, "series": label, "source": "ours"})
                points.append({"x": T, "y": greatest, "series": label, "source": "operator norm"})
    title = "Growth of gradients through T tokens, unit vectors (VLAv3)"
    return [Figure("gradients", title, "tokens T", "log10 |dL/dS_0| / |dL/dS_T|", points, log_x=True)]


def tables(results: Results, preset: Preset) -> list[Table]:
    """The growth in every run, by horizon."""
    rows = []
    for asked in runs(preset):
        found = results.value(asked)
        if found is not None:
            options = ", ".join(
                f"{name} {x:.3g}" if isinstance(x, float) else f"{name} {x}"
                for name, x in asked.arguments["options"].items()
            )
            shown = [f"{x:.2f} / {y:.2f}" for x, y in zip(found["random"], found["greatest"], strict=True)]
            rows.append([asked.arguments["form"], asked.arguments["d"], options or "as in the paper", *shown])
    headers = ["form", "d_h", "inputs", *(f"T = {T}" for T in HORIZONS)]
    note = "random gradients, mean over seeds / operator norm, maximum over seeds"
    return [Table("log10 of the growth of gradients", headers, rows, note)]


ITEM = Item(
    name="gradients",
    number="P13",
    title="Growth of gradients through T tokens",
    about=(
        "Corollary 1 says that gradients of S neither explode nor vanish. It rests on Proposition 2, which is false. "
        "So the product of the steps I - a k^T is measured in float64: how random gradients change, and how much any "
        "gradient can grow."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
