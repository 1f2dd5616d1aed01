"""P17: classical recursive least squares (RLS) beside VLA: the same A, another gain, and which one is stable."""

import math
from collections.abc import Sequence
from typing import Any

import torch

import varla
from reproduction.claims import Claim, Figure, Finding, Item, Judge, Table, Value
from reproduction.items.jacobian import DIMENSIONS, LAMBDA0
from reproduction.items.recurrence import Inputs, draw, spectral_norm, trajectory
from reproduction.records import Results
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, REPRODUCED
from varla.ops.algebra import apply, dot, outer
from varla.ops.features import unit


def fit(d: int, T: int, seed: int, gain: str, u: str) -> dict[str, float]:
    """Relative errors after T pairs of a noisy linear map: of A, of S against ridge regression, and of S k = v.

    `u`: "key" for u = k (least squares), "map" for u = W k with a random W (VLA). "objective" compares S with the
    minimiser of the paper's eq. (vla-obj), whose penalty is M = A^-1.
    """
    k, v, W = unit(draw(seed, (T, d)))[0], draw(seed + 1, (T, d)), draw(seed + 2, (d, d))
    v = k @ W.mT / math.sqrt(d) + 0.1 * v
    directions = unit(k if u == "key" else k @ draw(seed + 3, (d, d)).mT)[0]
    _, state = varla.vla(
        *(x[None, :, None] for x in (k, k, v, directions)),
        feature_map="identity", gain=gain, lambda0=LAMBDA0, penalty_scale=1.0, refresh_every=None, return_state=True,
    )  # fmt: skip
    S, A = state.S[0, 0], state.A[0, 0]
    M = LAMBDA0 * torch.eye(d, dtype=torch.float64) + directions.mT @ directions
    ridge = torch.linalg.solve(k.mT @ k + LAMBDA0 * torch.eye(d, dtype=torch.float64), k.mT @ v).mT
    objective = torch.linalg.solve(k.mT @ k + M, k.mT @ v).mT
    inverse = torch.linalg.inv(M)
    return {
        "A": float((A - inverse).norm() / inverse.norm()),
        "ridge": float((S - ridge).norm() / ridge.norm()),
        "objective": float((S - objective).norm() / objective.norm()),
        "prediction": float((k @ S.mT - v).norm() / v.norm()),
        "prediction of ridge": float((k @ ridge.mT - v).norm() / v.norm()),
    }


def sources(d: int, T: int, seed: int) -> dict[str, float]:
    """The largest relative difference of A_{t-1} k / (1 + k A_{t-1} k) and A_t k in T tokens, for u = k."""
    k = unit(draw(seed, (T, d)))[0]
    A, most = torch.eye(d, dtype=torch.float64) / LAMBDA0, 0.0
    for key in k:
        z = apply(A, key)
        before = z / (1 + dot(key, z))
        A = A - outer(z, z) / (1 + dot(key, z))
        after = apply(A, key)
        most = max(most, float((before - after).norm() / after.norm()))
    return {"most": most}


def jacobians(d: int, T: int, rows: int, seed: int, form: str, feature_map: str) -> dict[str, Any]:
    """Spectral norms of single steps and of their product over T tokens; and the product against lambda0 A_T."""
    k, a, A = trajectory(Inputs(d, form, feature_map), T, rows, seed)
    product = torch.eye(d, dtype=torch.float64).expand(rows, d, d)
    most = torch.ones((), dtype=torch.float64)
    for t in range(T):
        product = product - outer(a[t], (k[t][:, None] @ product)[:, 0])
        most = torch.maximum(most, torch.linalg.matrix_norm(product, ord=2).max()) if t % 10 == 9 else most
    norms = spectral_norm(k, a)
    return {
        "mean": float(norms.mean()),
        "greatest": float(norms.max()),
        "product, greatest": float(most),
        "product, last": float(torch.linalg.matrix_norm(product, ord=2).max()),
        "off lambda0 A": float((product - LAMBDA0 * A).norm() / (LAMBDA0 * A).norm()),
    }


def fit_run(preset: Preset, form: str) -> Measure:
    """The errors of RLS or VLA, 200 pairs in 32 dimensions."""
    options = {"rls": {"gain": "raw", "u": "key"}, "vla": {"gain": "unit", "u": "map"}}[form]
    return Measure(fit, {"d": 32, "T": 200, "seed": 42, **options})


def jacobian_run(preset: Preset, d: int, form: str, feature_map: str = "elu1") -> Measure:
    """The Jacobians of RLS or VLA."""
    T, rows = (200, 2) if preset.quick else (1000, 8)
    given = {"d": d, "T": T, "rows": rows, "seed": 42, "form": form, "feature_map": feature_map}
    return Measure(jacobians, given)


SOURCES = Measure(sources, {"d": 32, "T": 200, "seed": 42})
MAPS = ("elu1", "identity")


def runs(preset: Preset) -> Sequence[Measure]:
    """Errors and Jacobians of both."""
    every = [
        jacobian_run(preset, d, form, feature_map) for d in DIMENSIONS for form in ("rls", "v3") for feature_map in MAPS
    ]
    return [fit_run(preset, "rls"), fit_run(preset, "vla"), SOURCES, *every]


def judge_inverse(results: Results, preset: Preset) -> Finding:
    """Whether A is the inverse of the penalty in both."""
    found = [results.need(fit_run(preset, form)) for form in ("rls", "vla")]
    worst = max(value["A"] for value in found)
    note = "relative error of A against the inverse of lambda0 I + sum u u^T after 200 tokens, the worse of the two"
    return Finding(REPRODUCED if worst <= 1e-8 else FALSE, worst, note=note)


def judge_source(results: Results, preset: Preset) -> Finding:
    """Whether taking alpha from A_t makes a difference."""
    found = results.need(SOURCES)
    note = "largest relative difference; RLS's gain A_{t-1} k / (1 + k.A_{t-1} k) is A_t k, by Sherman-Morrison"
    differs = found["most"] > 1e-8
    return Finding(REPRODUCED if differs else FALSE, found["most"], note=note)


def judge_ridge(results: Results, preset: Preset) -> Finding:
    """Whether RLS gives ridge regression."""
    found = results.need(fit_run(preset, "rls"))
    note = "relative error of S against ridge regression on 200 pairs, by a linear solve"
    return Finding(REPRODUCED if found["ridge"] <= 1e-8 else FALSE, found["ridge"], note=note)


def judge_objective(results: Results, preset: Preset) -> Finding:
    """Whether VLA's S is the minimiser of its objective."""
    found = results.need(fit_run(preset, "vla"))
    if found["objective"] <= 1e-8:
        return Finding(REPRODUCED, found["objective"])
    note = (
        f"relative distance of S from the minimiser, 200 pairs of a noisy linear map; {found['ridge']:.3g} from ridge "
        f"regression. The relative error of S k = v over the pairs is {found['prediction']:.2f}, that of ridge "
        f"regression {found['prediction of ridge']:.2f}"
    )
    return Finding(FALSE, found["objective"], note=note)


def judge_jacobian(form: str) -> Judge:
    """The table's Jacobian norms."""

    def judge(results: Results, preset: Preset) -> Finding:
        found = {(d, m): results.need(jacobian_run(preset, d, form, m)) for d in DIMENSIONS for m in MAPS}
        greatest = max(value["greatest"] for value in found.values())
        first, last = (max(found[d, m]["mean"] for m in MAPS) for d in (DIMENSIONS[0], DIMENSIONS[-1]))
        note = f"largest over all tokens and dimensions; mean {first:.2f} at d_h = 32, {last:.2f} at 128"
        if form == "v3":
            return Finding(REPRODUCED if greatest <= 1 + 1e-6 else FALSE, greatest, note=note)
        claimed = DIMENSIONS[0] / LAMBDA0
        close = found[32, "elu1"]["greatest"] >= 0.5 * claimed and last >= 3 * first
        grows = last > 1.1 * first
        note = f"{note}; d_h / lambda0 is {claimed:g} to {DIMENSIONS[-1] / LAMBDA0:g}"
        return Finding(REPRODUCED if close else NOT_REPRODUCED if grows else FALSE, greatest, note=note)

    return judge


def judge_explosion(results: Results, preset: Preset) -> Finding:
    """Whether the gradients of RLS explode."""
    found = [results.need(jacobian_run(preset, d, "rls", m)) for d in DIMENSIONS for m in MAPS]
    most, off = (max(value[name] for value in found) for name in ("product, greatest", "off lambda0 A"))
    note = (
        f"largest operator norm of the product of all steps; the product is lambda0 A_T (checked to {off:.0e}), which "
        "is never above 1"
    )
    return Finding(REPRODUCED if most > 10 else FALSE, most, note=note)


def judge_stable(results: Results, preset: Preset) -> Finding:
    """Whether VLA's gradients are stable for all d."""
    found = [results.need(jacobian_run(preset, d, "v3", m)) for d in DIMENSIONS for m in MAPS]
    most = max(value["product, greatest"] for value in found)
    note = "largest operator norm of the product of all steps over all horizons; see also the growth of gradients"
    verdict = REPRODUCED if most <= 1 + 1e-6 else CONDITIONAL if most <= 10 else NOT_REPRODUCED
    return Finding(verdict, most, note=note)


def claims() -> list[Claim]:
    """The rows of the table, and two statements of the sections before it."""
    where = "appendix A, table of classical RLS"
    return [
        Claim(
            "P17-inverse", where, "both have the same Sherman-Morrison update of A", "same",
            "A is the inverse of its penalty within 1e-8 in both", judge_inverse,
        ),
        Claim(
            "P17-source", where, "taking alpha from A_t, not A_{t-1}, departs from classical RLS", "differs",
            "false if the two agree within 1e-8 for u = k", judge_source,
        ),
        Claim(
            "P17-ridge", "section 2.4", "recursive least squares keeps the minimiser exactly", 0.0,
            "S is that of ridge regression within 1e-8", judge_ridge,
        ),
        Claim(
            "P17-objective", "section 3.3", "VLA keeps the minimiser of its objective exactly", 0.0,
            "S is the minimiser of eq. (vla-obj) within 1e-8", judge_objective,
        ),
        Claim(
            "P17-jacobian-rls", where, "RLS: the norm of a step is d_h / lambda0 and grows", "320 to 1280",
            "within a factor of 2 at d_h = 32 and at least three times as large at 128; false if it does not grow",
            judge_jacobian("rls"),
        ),
        Claim(
            "P17-jacobian-vla", where, "VLA: the norm of a step is 1", 1.0,
            "false if above 1 + 1e-6 at any token", judge_jacobian("v3"),
        ),
        Claim(
            "P17-gradient-rls", where, "RLS: gradients explode at large d_h", "explodes",
            "false if the product of all steps stays below 10", judge_explosion,
        ),
        Claim(
            "P17-gradient-vla", where, "VLA: gradients are stable for all d_h", "<= 1",
            "the product of all steps at most 1; with conditions, at most 10", judge_stable,
        ),
    ]  # fmt: skip


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Mean norms of a step, by dimension."""
    points: list[dict[str, object]] = []
    for d in DIMENSIONS:
        points.append({"x": d, "y": d / LAMBDA0, "series": "RLS", "source": "paper"})
        points.append({"x": d, "y": 1.0, "series": "VLA", "source": "paper"})
        for series, form in (("RLS", "rls"), ("VLA", "v3")):
            found = results.value(jacobian_run(preset, d, form))
            if found is not None:
                points.append({"x": d, "y": found["mean"], "series": series, "source": "ours"})
                points.append({"x": d, "y": found["product, last"], "series": series, "source": "product of all"})
    title = "Spectral norm of a step, mean, and of the product of all steps (ELU + 1)"
    return [Figure("rls-jacobian", title, "head dimension", "spectral norm", points, log_y=True)]


def tables(results: Results, preset: Preset) -> list[Table]:
    """RLS and VLA side by side in every dimension."""
    rows: list[list[Value]] = []
    names = ("mean", "greatest", "product, greatest", "product, last")
    for d in DIMENSIONS:
        for form, shown in (("rls", "RLS"), ("v3", "VLA")):
            for feature_map in MAPS:
                found = results.value(jacobian_run(preset, d, form, feature_map))
                if found is not None:
                    rows.append([shown, d, feature_map, *(f"{found[name]:.3g}" for name in names)])
    headers = ["update", "d_h", "keys", "step, mean", "step, greatest", "product, greatest", "product, last"]
    return [Table("Spectral norms of one step and of the product of all", headers, rows)]


ITEM = Item(
    name="rls",
    number="P17",
    title="Classical recursive least squares beside VLA",
    about=(
        "The appendix sets VLA apart from classical recursive least squares (RLS), whose gradients are said to "
        "explode. But the product of RLS's steps is exactly lambda0 A_T, which never exceeds 1. Gradients explode if "
        "the penalty does not follow the keys (VLAv2). RLS also keeps the minimiser that both are derived from; VLA's "
        "S does not."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
