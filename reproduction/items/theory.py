"""P14: Propositions 1 and 3 and Remark 1, checked numerically, and what holds instead."""

from collections.abc import Sequence
from typing import Any

from reproduction.claims import Claim, Figure, Finding, Item, Table
from reproduction.items import propositions
from reproduction.protocol import Sample
from reproduction.records import Results
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, REPRODUCED

OFFSETS = (0.3, 0.1, 0.03, 0.01)
EXACT = 1e-8  # relative, in float64

# The cases that Proposition 3 is tested in: gain, penalty directions, lambda0 and keys.
RECOVERIES: dict[str, dict[str, Any]] = {
    "the paper's: unit gain, u = W k, random keys": {"gain": "unit", "u": "map", "keys": "random"},
    "unit gain, u = k, random keys": {"gain": "unit", "u": "key", "keys": "random"},
    "unit gain, A fixed, random keys": {"gain": "unit", "u": "none", "keys": "random"},
    "unit gain, u = W k, orthonormal keys": {"gain": "unit", "u": "map", "keys": "orthonormal"},
    "unit gain, u = k, orthonormal keys": {"gain": "unit", "u": "key", "keys": "orthonormal"},
    "projection gain, u = W k, random keys": {"gain": "projection", "u": "map", "keys": "random"},
    "projection gain, u = k, random keys": {"gain": "projection", "u": "key", "keys": "random"},
    "projection gain, u = k, lambda0 = 1e-6": {"gain": "projection", "u": "key", "keys": "random", "lambda0": 1e-6},
    "least squares (raw gain, u = k)": {"gain": "raw", "u": "key", "keys": "random"},
    "least squares, lambda0 = 1e-6": {"gain": "raw", "u": "key", "keys": "random", "lambda0": 1e-6},
}
PAPERS, ORTHONORMAL, NEWEST = (
    next(iter(RECOVERIES)),
    "unit gain, u = k, orthonormal keys",
    "projection gain, u = W k, random keys",
)
LIMIT = "projection gain, u = k, lambda0 = 1e-6"


def state_run(preset: Preset) -> Measure:
    """S on random inputs."""
    T = 1000 if preset.quick else 4000
    return Measure(propositions.random_state, {"d": 32, "T": T, "rows": 2 if preset.quick else 8, "seed": 42})


def depleted_run(s: float, refresh_every: int | None = None) -> Measure:
    """The counter-example, by the paper's equations or by Algorithm 1, which adds a refresh."""
    return Measure(propositions.depleted, {"s": s, "T": 2000, "refresh_every": refresh_every})


def recovery_run(name: str, n: int = 16) -> Measure:
    """Recovery of n pairs in 32 dimensions."""
    return Measure(propositions.recovery, {"n": n, "d": 32, "rows": 8, "seed": 42, **RECOVERIES[name]})


def reduction_run(keys: str) -> Measure:
    """The reduction to linear attention, for 24 keys in 32 dimensions."""
    return Measure(propositions.reduction, {"n": 24, "d": 32, "seed": 42, "keys": keys})


FIXED = Measure(propositions.fixed_norm, {"d": 32, "rows": 4, "seed": 42})
SIZES = (1, 4, 16, 32)


def runs(preset: Preset) -> Sequence[Measure]:
    """All measurements."""
    return [
        state_run(preset),
        *(depleted_run(s, refresh_every) for s in OFFSETS for refresh_every in (None, 20)),
        *(recovery_run(name, n) for name in RECOVERIES for n in SIZES),
        *(reduction_run(keys) for keys in ("random", "orthonormal")),
        FIXED,
    ]


def judge_inequality(results: Results, preset: Preset) -> Finding:
    """Whether |S_t| is at most the sum of the residuals."""
    found = results.need(state_run(preset))
    note = (
        f"largest |S| divided by the sum. This holds for any unit a, and does not bound S: the sum grows to "
        f"{found['bound at the end']:.3g} in {state_run(preset).arguments['T']} tokens"
    )
    share = found["most of the bound"]
    return Finding(REPRODUCED if share <= 1 + 1e-9 else FALSE, share, note=note)


def judge_residual(results: Results, preset: Preset) -> Finding:
    """A step of the proof: residuals go to zero."""
    found = results.need(state_run(preset))
    left = found["residual, last quarter"]
    note = "mean |e| / |v| in the last quarter of a random run; S cannot fit more pairs than it has dimensions"
    return Finding(REPRODUCED if left < 0.1 else FALSE, left, note=note)


def judge_plateau(results: Results, preset: Preset) -> Finding:
    """Whether |S| reaches a plateau on random inputs, and whether it has a uniform bound."""
    found = results.need(state_run(preset))
    counter = {s: results.need(depleted_run(s)) for s in OFFSETS}
    refreshed = [results.need(depleted_run(s, 20)) for s in OFFSETS]
    flat = found["last quarter"] <= 1.2 * found["third quarter"]
    unbounded = counter[0.01]["|S|"][-1] > 10 * counter[0.3]["|S|"][-1]
    shown = ", ".join(f"{counter[s]['|S|'][-1]:.3g} at s = {s:g}" for s in OFFSETS)
    note = (
        f"largest |S| on random inputs with unit-variance values (|v| about 5.7). |v| alone gives no bound: with "
        f"|v| = 1 and A depleted along one axis, a key with a component s off that axis takes |S| to about 1/s: "
        f"{shown}. With Algorithm 1's refresh it is at most {max(x['|S|'][-1] for x in refreshed):.3g}"
    )
    verdict = NOT_REPRODUCED if not flat else CONDITIONAL if unbounded else REPRODUCED
    return Sample(tuple(found["greatest"])).finding(verdict, note)


def judge_recovery(results: Results, preset: Preset) -> Finding:
    """Proposition 3 for the update as the paper states it."""
    found = {name: results.need(recovery_run(name)) for name in RECOVERIES}
    ours = found[PAPERS]["all"]
    if found[PAPERS]["worst"] <= EXACT:
        return Finding(REPRODUCED, ours, note="relative error, mean over 16 pairs in 32 dimensions")
    note = (
        f"mean |S k - v| / |v|, 16 random pairs in 32 dimensions; up to {found[PAPERS]['newest']:.2f} for the newest "
        f"pair. It is exact for u = k and orthonormal keys ({found[ORTHONORMAL]['worst']:.0e}), and in the limit "
        f"lambda0 -> 0 for u = k and the projection gain ({found[LIMIT]['worst']:.0e} at lambda0 = 1e-6)"
    )
    return Finding(FALSE, ours, note=note)


def judge_newest(results: Results, preset: Preset) -> Finding:
    """Whether the newest pair is recovered; it is with the projection gain."""
    found, papers = results.need(recovery_run(NEWEST)), results.need(recovery_run(PAPERS))
    if papers["newest"] <= EXACT:
        return Finding(REPRODUCED, papers["newest"], note="with the unit gain")
    note = f"with the gain A k / (k.A k), worst of 8 seeds; {papers['newest']:.2f} with the paper's unit gain"
    return Finding(CONDITIONAL if found["newest"] <= EXACT else FALSE, found["newest"], note=note)


def judge_reduction(results: Results, preset: Preset) -> Finding:
    """Section 3.5: VLA with u = 0 and A fixed is linear attention."""
    found = results.need(reduction_run("random"))
    note = (
        f"relative difference of S from that of linear attention with unit keys, 24 random keys. The difference from "
        f"the delta rule at full strength is {found['delta rule']:.0e}: VLA reduces to that one"
    )
    same = found["linear attention"] <= EXACT
    return Finding(REPRODUCED if same else FALSE, found["linear attention"], note=note)


def judge_remark(results: Results, preset: Preset) -> Finding:
    """Remark 1, with its condition e = v."""
    random, apart = (results.need(reduction_run(keys)) for keys in ("random", "orthonormal"))
    if random["linear attention"] <= EXACT:
        return Finding(REPRODUCED, random["linear attention"])
    note = (
        f"relative difference of S for orthonormal keys, where e = v; for random keys {random['linear attention']:.2g}"
    )
    good = apart["linear attention"] <= EXACT
    return Finding(CONDITIONAL if good else FALSE, apart["linear attention"], note=note)


def judge_active(results: Results, preset: Preset) -> Finding:
    """Remark 1's last sentence."""
    found = results.need(FIXED)
    only = found["fixed"] > 1 + 1e-6 and found["updated"] <= 1 + 1e-6
    note = (
        f"largest spectral norm of a step with A fixed; it is {found['updated']:.3f} with A updated: the reverse holds"
    )
    return Finding(REPRODUCED if only else FALSE, found["fixed"], note=note)


def claims() -> list[Claim]:
    """The parts of two propositions and a remark."""
    return [
        Claim(
            "P14-norm-bound",
            "Proposition 1, inequality",
            "|S_t| is at most the sum of the residuals' norms",
            1.0,
            "holds at every token of every random run",
            judge_inequality,
        ),
        Claim(
            "P14-residual",
            "Proposition 1, proof",
            "residuals go to zero",
            0.0,
            "mean |e| / |v| below 0.1 in the last quarter of a random run",
            judge_residual,
        ),
        Claim(
            "P14-plateau",
            "Proposition 1",
            "|S| converges to a finite plateau for bounded inputs",
            "finite",
            "|S| in the last quarter is at most 1.2 times that in the third; with conditions, if inputs with |v| = 1 "
            "can make it arbitrarily large",
            judge_plateau,
        ),
        Claim(
            "P14-recovery",
            "Proposition 3",
            "S k_i = v_i for all i, for n <= d_h linearly independent keys",
            0.0,
            "false if the mean relative error is above 1e-8 in float64",
            judge_recovery,
        ),
        Claim(
            "P14-newest",
            "Proposition 3, for the newest pair",
            "S k_n = v_n after pair n",
            0.0,
            "error at most 1e-8; with conditions, if only with the projection gain",
            judge_newest,
        ),
        Claim(
            "P14-reduction",
            "section 3.5",
            "u = 0 and A fixed is standard linear attention",
            0.0,
            "S is the same within 1e-8 for random keys",
            judge_reduction,
        ),
        Claim(
            "P14-remark",
            "Remark 1",
            "u = 0, A fixed and e = v is linear attention with unit keys",
            0.0,
            "S is the same within 1e-8 for random keys; with conditions, if only for orthonormal keys",
            judge_remark,
        ),
        Claim(
            "P14-active",
            "Remark 1",
            "the unit Jacobian holds only when A is updated",
            "> 1",
            "false unless the spectral norm is above 1 with A fixed and 1 with A updated",
            judge_active,
        ),
    ]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """The counter-example by repetitions, and its limit."""
    points: list[dict[str, object]] = []
    for s in OFFSETS:
        found = results.value(depleted_run(s))
        if found is not None:
            pairs = zip(found["t"], found["|S|"], strict=True)
            points += [{"x": t, "y": y, "series": f"s = {s:g}", "source": "ours"} for t, y in pairs]
            points.append({"x": found["t"][-1], "y": found["bound"], "series": f"s = {s:g}", "source": "closed form"})
    title = "One key repeated after A was depleted, |v| = 1"
    return [Figure("counter-example", title, "times the key was repeated", "|S|", points, log_x=True, log_y=True)]


def tables(results: Results, preset: Preset) -> list[Table]:
    """Recovery in every case."""
    rows = []
    for name in RECOVERIES:
        found = [results.value(recovery_run(name, n)) for n in SIZES]
        if all(value is not None for value in found):
            rows.append([name, *(f"{x['all']:.1e} / {x['newest']:.1e}" for x in found)])
    note = "mean |S k - v| / |v| of all pairs / worst of the newest pair, 8 seeds, d_h = 32"
    return [Table("Recovery of n pairs", ["update", *(f"n = {n}" for n in SIZES)], rows, note)]


ITEM = Item(
    name="theory",
    number="P14",
    title="Bounded state, exact recovery, reduction to linear attention",
    about=(
        "Proposition 1 (bounded state), Proposition 3 (exact recovery) and Remark 1 (reduction), tested numerically in "
        "float64. If a statement fails, the conditions under which it holds are tested as well."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
