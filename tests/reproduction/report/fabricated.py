"""Two items and their records, made up: every verdict, both presets, figures of all kinds, a run that diverged."""

from reproduction import records
from reproduction.claims import MISSING, Claim, Figure, Finding, Item, Table
from reproduction.protocol import within
from reproduction.records import Results
from reproduction.runs import FULL, PRESETS, QUICK, Measure, Train
from reproduction.verdicts import CONDITIONAL, FALSE, REPRODUCED
from varla.runs.outcomes import DIVERGED, FINISHED

MACHINE = {"processor": "Imaginary 9000", "cores": 2, "gpus": [], "python": "3.11.7", "torch": "2.13.0"}


def train(preset, mechanism, n, seed):
    settings = {"mechanism": mechanism, "seed": seed, "task": {"name": "mqar", "n": n}}
    return Train({**settings, "train": {"steps": 10 if preset.quick else 100}})


def seeds(preset, mechanism, n):
    return [train(preset, mechanism, n, seed) for seed in preset.seeds]


def always(finding):
    return lambda results, preset: finding


def recall_claims():
    for mechanism, n, paper in (("vla", 24, 1.0), ("vla", 8, 1.0), ("linear", 8, 0.15), ("softmax", 8, 0.9)):
        yield Claim(
            id=f"P7-{mechanism}-{n}",
            where="Fig. 1",
            says=f"{mechanism} recalls n = {n} pairs with accuracy {paper:g}",
            paper=paper,
            rule="mean over seeds within 0.03 of the paper's",
            decide=within(lambda preset, m=mechanism, n=n: seeds(preset, m, n), paper, 0.03),
        )


def recall_runs(preset):
    return [run for mechanism, n in (("vla", 8), ("linear", 8)) for run in seeds(preset, mechanism, n)] + (
        seeds(preset, "softmax", 8) if preset.quick else []
    )


def recall_figures(results, preset):
    points = [{"x": n, "y": 1 / n, "series": "linear", "source": "paper"} for n in (4, 8, 16)]
    points += [{"x": n, "y": 1.0, "series": "vla", "source": "paper"} for n in (4, 8, 16)]
    for mechanism in ("vla", "linear"):
        found = results.accuracies(seeds(preset, mechanism, 8))
        if found:
            spread = {"low": min(found), "high": max(found)}
            mean = sum(found) / len(found)
            points.append({"x": 8, "y": mean, "series": mechanism, "source": "ours", **spread})
    return [Figure("recall", "Recall of n pairs", "pairs n", "accuracy", points, log_x=True, note="one of `two`")]


RECALL = Item(
    name="recall",
    number="P7",
    title="Recall",
    about='What is recalled, with `gain="paper"` & <nothing> else.',
    claims=tuple(recall_claims()),
    runs=recall_runs,
    figures=recall_figures,
)


def norm(length):
    return length**0.5


NORM = Measure(norm, {"length": 1000})


def norm_figures(results, preset):
    steps = range(1, 201)
    points = [
        {"x": t, "y": t**1.5, "series": "|S|", "source": "ours", "low": t**1.5 / 2, "high": 2 * t**1.5} for t in steps
    ]
    points += [{"x": t, "y": float(t), "series": "|S|", "source": "closed form"} for t in steps]
    points += [{"x": 7, "y": "nan", "series": "|S|", "source": "ours"}]
    kinds = [
        {"x": name, "y": y, "series": "speed", "source": source}
        for source, factor in (("paper", 1.0), ("ours", 1.5))
        for name, y in (("scan", 3 * factor), ("chunk", 9 * factor))
    ]
    return [
        Figure("norms", "Norm of S after t tokens", "token", "norm", points, log_x=True, log_y=True),
        Figure("kinds", "Speed by form", "form", "tokens/s", kinds),
        Figure("empty", "Nothing measured yet", "x", "y", []),
    ]


NORMS = Item(
    name="norms",
    number="P12",
    title="Norms",
    about="How large S becomes.",
    claims=(
        Claim("P12-bounded", "Prop. 1", "S | A stays bounded", "bounded", "a bound holds", always(
            Finding(CONDITIONAL, "bounded", note="only with unit keys"))),
        Claim("P12-unit", "Prop. 2", "the Jacobian has norm 1", 1.0, "a counter-example", always(
            Finding(FALSE, 1.75, note="d = 2, see `math.md`"))),
        Claim("P12-growth", "text", "linear attention's S grows", None, "the norm grows", always(
            Finding(REPRODUCED, 43000.0, 41000.0, 45000.0, 3))),
        Claim("P12-later", "Fig. 9", "something that nobody has run", 12, "it is run", always(MISSING)),
    ),
    runs=lambda preset: [NORM],
    figures=norm_figures,
    tables=lambda results, preset: [Table("Norms | by length", ("T", "|S|"), [(64, 1.5), (128, None)], "as measured")],
)  # fmt: skip

ITEMS = (RECALL, NORMS)
VERDICT_COUNTS = {
    "reproduced": 3,
    "reproduced with conditions": 1,
    "not reproduced": 1,
    "false": 1,
    "not run": 2,
}


def trained(run, accuracy):
    status = {"status": FINISHED, "final": {"eval": accuracy}, "steps": 100}
    if accuracy is None:
        status = {"status": DIVERGED, "final": {}, "steps": 3, "message": "loss is <nan> at step 3"}
    described = {"key": run.key, "label": run.label, "train": records.changed(run.config), "seconds": 60.0}
    return {**described, **status, "environment": {**MACHINE, "commit": "0123456789abcdef"}}


def write(folder):
    """Records of both items: `full` without softmax, which only `quick` has; P7-vla-24 was run at neither."""
    full, quick = Results(), Results()
    for mechanism, accuracies in (("vla", (1.0, 0.99, 1.0)), ("linear", (0.16, 0.13, 0.14))):
        for run, accuracy in zip(seeds(FULL, mechanism, 8), accuracies, strict=True):
            full.records[run.key] = trained(run, accuracy)
    for run in seeds(QUICK, "softmax", 8):
        quick.records[run.key] = trained(run, None)
    value = {"key": NORM.key, "label": NORM.label, "measure": NORM.recorded_name, "arguments": dict(NORM.arguments)}
    full.records[NORM.key] = {**value, "status": FINISHED, "value": 1.5, "seconds": 1.0, "environment": MACHINE}
    for item in ITEMS:
        for preset, results in (("full", full), ("quick", quick)):
            records.save(folder, preset, item.name, item.runs(PRESETS[preset]), results)
    return folder
