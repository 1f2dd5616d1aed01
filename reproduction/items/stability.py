"""P12: the norms of S and A over tokens, in an untrained model and in one trained on recall."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from reproduction.claims import Claim, Figure, Finding, Item, Table
from reproduction.items import norms
from reproduction.items.norms import TOKENS
from reproduction.protocol import QUICK_TRAIN, Sample
from reproduction.records import Results, need
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, NOT_REPRODUCED, REPRODUCED

MECHANISMS = ("linear", "deltanet-paper", "vla")


def longest(preset: Preset, mechanism: str = "vla") -> int:
    """Tokens of the long runs. The paper's DeltaNet is slow (a head per channel) and shows nothing new later."""
    return 20_000 if preset.quick or mechanism == "deltanet-paper" else 100_000


def run(preset: Preset, mechanism: str, seed: int) -> Measure:
    """Norms of an untrained model."""
    return Measure(norms.untrained, {"mechanism": mechanism, "seed": seed, "T": longest(preset, mechanism)})


def trained_run(preset: Preset) -> Measure:
    """Norms of a trained model."""
    steps = 200 if preset.quick else QUICK_TRAIN["steps"]
    given = {"steps": int(steps), "lr": QUICK_TRAIN["lr"], "seed": 42, "T": longest(preset)}
    return Measure(norms.trained, given)


def lengths_run(preset: Preset) -> Measure:
    """The length of values in the trained model and in an untrained one."""
    given = {**trained_run(preset).arguments, "T": TOKENS}
    return Measure(norms.value_lengths, given)


def runs(preset: Preset) -> Sequence[Measure]:
    """Every mechanism with every seed, and the trained model."""
    trained = [trained_run(preset), lengths_run(preset)]
    return [*(run(preset, name, seed) for name in MECHANISMS for seed in preset.seeds), *trained]


Norms = Mapping[str, Sequence[float]]


def values(results: Results, preset: Preset, mechanism: str, pick: Callable[[Norms], float]) -> Sample | None:
    """One number from each seed's norms; None unless all runs have a record."""
    found = [results.value(run(preset, mechanism, seed)) for seed in preset.seeds]
    return None if any(each is None for each in found) else Sample(tuple(pick(each) for each in found))


def at(t: int, name: str = "|S|") -> Callable[[Norms], float]:
    """The norm after t tokens."""
    return lambda norms: norms[name][list(norms["t"]).index(t)]


def most(name: str, low: int, high: float = math.inf) -> Callable[[Norms], float]:
    """The largest norm from t = low to high."""
    return lambda norms: max(x for t, x in zip(norms["t"], norms[name], strict=True) if low <= t <= high)


def judge_linear(results: Results, preset: Preset) -> Finding:
    """Linear attention's norm after 1000 tokens."""
    found = need(values(results, preset, "linear", at(TOKENS)))
    close = 0.6 <= found.mean / 1630 <= 1.4
    return found.finding(REPRODUCED if close else NOT_REPRODUCED, "mean over heads; depends on the initial weights")


def straightness(norms: Norms) -> float:
    """The share of the variance of |S| over 1000 tokens that a straight line explains."""
    pairs = [(t, y) for t, y in zip(norms["t"], norms["|S|"], strict=True) if t <= TOKENS]
    t, y = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return float(1 - (y - line(t, y)).square().sum() / (y - y.mean()).square().sum())


def judge_rate(results: Results, preset: Preset) -> Finding:
    """How fast linear attention's norm grows over 1000 tokens, and whether the rate is constant."""
    found = need(values(results, preset, "linear", at(TOKENS)))
    straight = need(values(results, preset, "linear", straightness))
    late = need(values(results, preset, "linear", lambda x: at(longest(preset))(x) / longest(preset)))
    rate = Sample(tuple(x / TOKENS for x in found.values))
    good = straight.low >= 0.99 and 0.6 <= rate.mean / 1.6 <= 1.4
    line_fits = f"a straight line explains {straight.low:.2%} of the variance"
    note = f"per token; {line_fits}; {late.mean:.3g} per token over {longest(preset)} tokens"
    return rate.finding(REPRODUCED if good else NOT_REPRODUCED, note)


def judge_vla(results: Results, preset: Preset) -> Finding:
    """VLA's largest norm in 1000 tokens."""
    found = need(values(results, preset, "vla", most("|S|", 1, TOKENS)))
    if found.mean < 15:
        return found.finding(REPRODUCED, "largest in 1000 tokens, mean over heads")
    close = found.mean < 1.1 * 15
    return found.finding(CONDITIONAL if close else NOT_REPRODUCED, "depends on the initial weights: see the spread")


def judge_ratio(results: Results, preset: Preset) -> Finding:
    """How much smaller VLA's norm is than linear attention's."""
    linear, vla = (need(values(results, preset, name, at(TOKENS))) for name in ("linear", "vla"))
    ratio = Sample(tuple(x / y for x, y in zip(linear.values, vla.values, strict=True)))
    good = 0.6 <= ratio.mean / 109 <= 1.4
    return ratio.finding(
        REPRODUCED if good else NOT_REPRODUCED, "keys have different lengths: only VLA's are unit vectors"
    )


def judge_penalty(results: Results, preset: Preset) -> Finding:
    """|A| at the start and after a thousand tokens."""
    first, last = (need(values(results, preset, "vla", at(t, "|A|"))) for t in (1, TOKENS))
    good = abs(first.mean - 56) <= 2 and 0.7 <= last.mean / 10 <= 1.4
    note = f"after {TOKENS} tokens; {first.mean:.1f} after one token; {math.sqrt(32) * 10:.1f} at the start"
    return last.finding(REPRODUCED if good else NOT_REPRODUCED, note)


def decays(norms: Norms, low: int = 25, high: int = TOKENS) -> dict[str, float]:
    """Root-mean-square relative error of three two-parameter laws fitted to |A| from t = low to high."""
    t = torch.tensor([x for x in norms["t"] if low <= x <= high], dtype=torch.float64)
    y = torch.tensor(
        [a for x, a in zip(norms["t"], norms["|A|"], strict=True) if low <= x <= high], dtype=torch.float64
    )
    laws = {
        "exponential": line(t, y.log()).exp(),
        "power": line(t.log(), y.log()).exp(),
        "hyperbola": 1 / line(t, 1 / y),
    }
    return {name: float((fit / y - 1).square().mean().sqrt()) for name, fit in laws.items()}


def line(x: Tensor, y: Tensor) -> Tensor:
    """The least-squares line through the points, at x."""
    design = torch.stack((torch.ones_like(x), x), 1)
    fit: Tensor = design @ torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
    return fit


def judge_decay(results: Results, preset: Preset) -> Finding:
    """Whether |A| decays exponentially: which law fits best."""
    found = [results.need(run(preset, "vla", seed)) for seed in preset.seeds]
    fits = [decays(each) for each in found]
    mean = {name: sum(fit[name] for fit in fits) / len(fits) for name in fits[0]}
    best = min(mean, key=lambda name: mean[name])
    shown = ", ".join(f"{name} {error:.1%}" for name, error in mean.items())
    note = f"the law with the best fit; errors from t = 25 to 1000: {shown}. The penalty grows linearly, so A ~ 1/t"
    return Finding(REPRODUCED if best == "exponential" else NOT_REPRODUCED, best, note=note)


def judge_plateau(results: Results, preset: Preset) -> Finding:
    """Whether S stabilises, and where."""
    end = longest(preset)
    flat = need(values(results, preset, "vla", lambda x: at(end)(x) / at(end // 2)(x)))
    late, early = (need(values(results, preset, "vla", at(t))) for t in (end, TOKENS))
    A = need(values(results, preset, "vla", at(end, "|A|")))
    verdict = NOT_REPRODUCED if flat.mean > 1.1 else REPRODUCED if late.mean <= 1.2 * early.mean else CONDITIONAL
    note = (
        f"|S| after {end} tokens: {flat.mean:.2f} times that after {end // 2}, but {late.mean / early.mean:.2f} times "
        f"that after {TOKENS}, where the paper's figure ends. |A| is {A.mean:.2f} at the end: the refresh keeps it up"
    )
    return late.finding(verdict, note)


def judge_deltanet(results: Results, preset: Preset) -> Finding:
    """Whether the paper's DeltaNet stays bounded."""
    end = longest(preset, "deltanet-paper")
    found = need(values(results, preset, "deltanet-paper", most("|S|", 1)))
    late = need(values(results, preset, "deltanet-paper", at(end)))
    vla = need(values(results, preset, "vla", at(end)))
    verdict = REPRODUCED if found.mean < 15 else NOT_REPRODUCED
    times = vla.mean / late.mean
    note = f"largest in {end} tokens; {late.mean:.2f} at the end, where VLA's is {times:.0f} times as large"
    return found.finding(verdict, note)


def judge_trained(results: Results, preset: Preset) -> Finding:
    """The same bound in a trained model."""
    asked = trained_run(preset)
    found = results.need(asked)
    ours, late = most("|S|", 1, TOKENS)(found), at(longest(preset))(found)
    note = (
        f"largest in {TOKENS} tokens after {asked.arguments['steps']} steps of training (accuracy "
        f"{found['accuracy']:.2f}); {late:.1f} after {longest(preset)}; |A| {at(TOKENS, '|A|')(found):.1f} at {TOKENS}"
    )
    if (lengths := results.value(lengths_run(preset))) is not None:
        trained, untrained = lengths["trained"], lengths["untrained"]
        note += f"; the mean length of values is {trained:.2f}, and {untrained:.2f} in an untrained model"
    return Finding(REPRODUCED if ours < 15 else NOT_REPRODUCED, ours, note=note)


WHERE = "stability figure and text"


def claims() -> list[Claim]:
    """The claims of the figure and its text."""
    wide = "mean over seeds within 40% of the paper's (which has one unknown seed)"
    return [
        Claim("P12-linear-norm", WHERE, "linear attention: |S| about 1630 at T = 1000", 1630, wide, judge_linear),
        Claim(
            "P12-linear-rate",
            WHERE,
            "linear attention: |S| grows by about 1.6 a token, at a constant rate",
            1.6,
            f"{wide}, and a straight line explains 99% of the variance to T = 1000 for every seed",
            judge_rate,
        ),
        Claim(
            "P12-vla-norm",
            WHERE,
            "VLA: |S| stays below 15 to T = 1000",
            "< 15",
            "largest value, mean over seeds, below 15; with conditions, below 16.5",
            judge_vla,
        ),
        Claim("P12-ratio", WHERE, "VLA's |S| is about 109 times smaller than linear's", 109, wide, judge_ratio),
        Claim(
            "P12-deltanet",
            WHERE,
            "DeltaNet stays bounded too",
            "near VLA's",
            "largest value to T = 20 000, mean over seeds, below VLA's bound of 15",
            judge_deltanet,
        ),
        Claim(
            "P12-penalty",
            WHERE,
            "|A| falls from about 56 to about 10 in 1000 tokens",
            10,
            "56 +- 2 after one token and 7 to 14 after 1000, means over seeds",
            judge_penalty,
        ),
        Claim(
            "P12-exponential",
            WHERE,
            "|A| decays exponentially",
            "exponential",
            "an exponential fits better than a power law and a hyperbola 1 / (a + b t)",
            judge_decay,
        ),
        Claim(
            "P12-plateau",
            "section 4.4",
            "S stabilises as T grows",
            "< 15",
            "|S| at the longest T is at most 1.1 times that at half of it; with conditions, if it is more than 1.2 "
            "times that at T = 1000",
            judge_plateau,
        ),
        Claim(
            "P12-trained",
            WHERE,
            "|S| stays below 15, in a trained model as well (the paper shows an untrained one)",
            "< 15",
            "largest value to T = 1000 below 15",
            judge_trained,
        ),
    ]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Norms over tokens with the first seed, and the paper's at T = 1000."""
    points: dict[str, list[dict[str, object]]] = {
        "|S|": [
            {"x": TOKENS, "y": 1630, "series": "linear", "source": "paper"},
            {"x": TOKENS, "y": 15, "series": "vla", "source": "paper"},
        ],
        "|A|": [
            {"x": 1, "y": 56, "series": "vla", "source": "paper"},
            {"x": TOKENS, "y": 10, "series": "vla", "source": "paper"},
        ],
    }
    asked = {name: run(preset, name, preset.seeds[0]) for name in MECHANISMS}
    for series, each in {**asked, "vla, trained": trained_run(preset)}.items():
        found = results.value(each) or {}
        for norm, into in points.items():
            pairs = zip(found.get("t", []), found.get(norm, []), strict=norm in found)
            into.extend({"x": t, "y": y, "series": series, "source": "ours"} for t, y in pairs)
    titles = {"|S|": ("state-norm", "Norm of S over tokens"), "|A|": ("penalty-norm", "Norm of A over tokens")}
    return [
        Figure(name, f"{title}, last layer, random tokens", "tokens", norm, points[norm], log_x=True, log_y=True)
        for norm, (name, title) in titles.items()
    ]


def tables(results: Results, preset: Preset) -> list[Table]:
    """Norms at a few lengths."""
    shown = [t for t in (1, 100, 1000, 5000, 10_000, 50_000, 100_000) if t <= longest(preset)]
    rows = []
    for mechanism in MECHANISMS:
        for norm in ("|S|", "|A|") if mechanism == "vla" else ("|S|",):
            known = [t for t in shown if t <= longest(preset, mechanism)]
            cells = [values(results, preset, mechanism, at(t, norm)) if t in known else None for t in shown]
            rows.append([mechanism, norm, *("" if x is None else f"{x.mean:.4g}" for x in cells)])
    found = results.value(trained_run(preset))
    if found is not None:
        rows += [["vla, trained", norm, *(f"{at(t, norm)(found):.4g}" for t in shown)] for norm in ("|S|", "|A|")]
    note = "last layer, mean over heads and seeds; learned positions start again after max_len"
    return [Table("Norms over tokens", ["mechanism", "norm", *(f"t = {t}" for t in shown)], rows, note)]


ITEM = Item(
    name="stability",
    number="P12",
    title="Norms of the memory over tokens",
    about=(
        "An untrained model of the preset `paper` reads random tokens: 1000 as in the paper, and far more. The norms "
        "are those of the last layer's S and A. Learned positions end at 1024 (25 in the trained model) and start "
        "again, while the memory continues."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
