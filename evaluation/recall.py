"""Recall against bytes of state: how many key-value pairs each mechanism keeps.

    python -m evaluation.recall                            what is recorded, as a table
    python -m evaluation.recall run --preset quick         small: minutes on two CPU cores
    python -m evaluation.recall run --preset full --jobs 6 --minutes 9       on a GPU; the same command continues
    python -m evaluation.recall draw --preset full         draws the table into docs/family.md, and README's figure

The task is mqar-zoology: n pairs, then each key once. Every mechanism gets the same treatment: the protocol `tuned`
(short convolution, output norm, initialisation), the same learning rates, batches and seeds. Two rows have values twice
as wide: as many bytes of state as Gated VLA, whose A doubles it. Every run is recorded once it ends, and is not made
again.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from reproduction.claims import Item
from reproduction.records import Results, load
from reproduction.runner import reproduce
from reproduction.runs import FULL, QUICK, Preset, Train
from varla.cli.output import say, show, table
from varla.report.series import COLOURS

RECORDS = Path("evaluation/results")
RUNS = Path("runs/evaluation")
DOCS = Path(__file__).parents[1] / "docs/family.md"
FIGURE = Path(__file__).parents[1] / "docs/figures/recall.svg"
NOT_RUN = "-"
DRAWN = ("gated-deltanet", "gated-deltanet, wide", "gated-vla", "softmax")  # in the figure


@dataclass(frozen=True)
class Contender:
    """A mechanism with layer options. `wide`: values are twice as wide as keys."""

    mechanism: str
    options: Mapping[str, Any]
    wide: bool = False


# The layer's defaults, spelled out: records are found by what is spelled out, and a new default needs new runs.
GATED: Mapping[str, Any] = {"strength_init": 2.0, "u_init": "keys", "forget": True, "beat": 256}
CONTENDERS: Mapping[str, Contender] = {
    "softmax": Contender("softmax", {}),
    "deltanet": Contender("deltanet", {}),
    "deltanet, wide": Contender("deltanet", {}, wide=True),
    "gated-deltanet": Contender("gated-deltanet", {}),
    "gated-deltanet, wide": Contender("gated-deltanet", {}, wide=True),
    "vla": Contender("vla", {}),
    "gated-vla": Contender("gated-vla", GATED),
    "gated-vla, A fixed": Contender("gated-vla", {"update_penalty": False}),
    "gated-vla, no forgetting": Contender("gated-vla", {**GATED, "forget": False}),
    "gated-vla, u drawn": Contender("gated-vla", {**GATED, "u_init": "drawn"}),
}


@dataclass(frozen=True)
class Scale:
    """Sizes of the runs at one preset."""

    pairs: tuple[int, ...]
    head_dim: int
    rates: tuple[float, ...]
    steps: int
    batch: int
    precision: str


# The vocabulary grows with the pairs, 8 tokens a pair: a value is then as hard to guess at every n.
SCALES: Mapping[str, Scale] = {
    "quick": Scale((16, 32), 16, (3e-3,), 600, 32, "fp32"),
    "full": Scale((64, 128, 256), 64, (1e-3, 3e-3), 4000, 64, "bf16"),
}


def run(name: str, n: int, rate: float, seed: int, preset: Preset) -> Train:
    """One training run."""
    contender, scale = CONTENDERS[name], SCALES[preset.name]
    layer = {"head_dim": scale.head_dim, **contender.options}
    if contender.wide:
        layer["value_dim"] = 2 * scale.head_dim
    rare = {"eval_every": max(1, scale.steps // 4), "checkpoint_every": scale.steps}
    return Train(
        {
            "mechanism": contender.mechanism,
            "preset": "tuned",
            "seed": seed,
            "task": {"name": "mqar-zoology", "n": n, "vocab_size": 8 * n},
            "layer": layer,
            "train": {
                "steps": scale.steps, "lr": rate, "batch_size": scale.batch, "precision": scale.precision,
                "graph": not preset.quick, **rare,
            },
        }
    )  # fmt: skip


def runs(preset: Preset, first: Sequence[str] = ("gated-vla",), pairs: int | None = None) -> Sequence[Train]:
    """All runs. `pairs` comes first; else the middle n, by which the mechanisms are judged. The easiest comes last.

    At each n, the contenders `first` come first.
    """
    scale = SCALES[preset.name]
    easy, *hard = scale.pairs
    return [
        run(name, n, rate, seed, preset)
        for n in sorted((*hard, easy), key=lambda n: n != pairs)
        for name in sorted(CONTENDERS, key=lambda name: name not in first)
        for seed in preset.seeds
        for rate in scale.rates
    ]


ITEM = Item("recall", "E1", "Recall against bytes of state", __doc__ or "", (), runs)


def rows(results: Results, preset: Preset) -> list[list[str]]:
    """A row for each contender: bytes of state of a layer, then for each n and rate the least to greatest accuracy."""
    scale, found = SCALES[preset.name], []
    for name in CONTENDERS:
        sizes = _state_bytes(results, name, preset)
        cells = [
            _accuracies(results.accuracies(run(name, n, rate, seed, preset) for seed in preset.seeds))
            for n in scale.pairs
            for rate in scale.rates
        ]
        found.append([name, sizes, *cells])
    return found


def _state_bytes(results: Results, name: str, preset: Preset) -> str:
    """Of the longest context that was run: softmax's grows with it."""
    scale = SCALES[preset.name]
    for n in reversed(scale.pairs):
        made = (run(name, n, rate, seed, preset) for rate in scale.rates for seed in preset.seeds)
        for record in map(results.get, made):
            if record is not None:
                return f"{record['state bytes']:,}"
    return NOT_RUN


def page(results: Results, preset: Preset) -> str:
    """docs/family.md with the present table. Rows and columns without any run are left out."""
    made = [row for row in rows(results, preset) if set(row[1:]) != {NOT_RUN}]
    lines = [headers(preset), ["---"] * len(headers(preset)), *made]
    kept = [i for i, cells in enumerate(zip(*made, strict=True)) if set(cells) != {NOT_RUN}]
    drawn = "\n".join("| " + " | ".join(cells[i] for i in kept) + " |" for cells in lines)
    return measure.drawn(DOCS.read_text(), f"evaluation/results/{preset.name}: python -m evaluation.recall draw", drawn)


def points(results: Results, preset: Preset) -> list[dict[str, Any]]:
    """The figure's points, one a run: every recorded seed and rate of the contenders DRAWN, at the middle n."""
    scale, found = SCALES[preset.name], []
    n = scale.pairs[len(scale.pairs) // 2]
    for name in DRAWN:
        for made in (run(name, n, rate, seed, preset) for rate in scale.rates for seed in preset.seeds):
            record, accuracy = results.get(made), results.accuracy(made)
            if record is not None and accuracy is not None:
                found.append({"mechanism": name, "bytes": record["state bytes"], "accuracy": accuracy, "pairs": n})
    return found


def figure(found: Sequence[Mapping[str, Any]]) -> Any:
    """Accuracy of every run, a row for each contender, as an Altair chart that is legible on white and on black."""
    import altair as alt

    sizes = {point["mechanism"]: point["bytes"] for point in found}
    names = [name for name in DRAWN if name in sizes]
    # The runs of a row stand one below the other: most of them have nearly the same accuracy.
    counts, seen = Counter(point["mechanism"] for point in found), Counter[str]()
    dots, ink = [], "#808080"
    for point in found:
        name = point["mechanism"]
        dots.append({**point, "run": names.index(name) + 0.5 + 0.13 * (seen[name] - (counts[name] - 1) / 2)})
        seen[name] += 1
    texts = [
        {"mechanism": name, "row": i + 0.5, "text": [name, size(sizes[name]) + " of state"]}
        for i, name in enumerate(names)
    ]
    down = alt.Scale(domain=[0, len(names)], reverse=True, nice=False)
    rows = alt.Axis(values=list(range(len(names) + 1)), labels=False, ticks=False, title=None)
    accuracy = alt.X("accuracy:Q", title=f"accuracy with {found[0]['pairs']} pairs, a dot for each run")
    colour = alt.Color(
        "mechanism:N",
        scale=alt.Scale(domain=names, range=[COLOURS[CONTENDERS[name].mechanism] for name in names]),
        legend=None,
    )
    drawn = alt.layer(
        alt.Chart(alt.InlineData(values=dots))
        .mark_circle(size=50, opacity=1)
        .encode(
            x=accuracy.scale(domain=[0, 1]).axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1], format=".12~g"),
            y=alt.Y("run:Q", scale=down, axis=rows),
            color=colour,
        ),
        alt.Chart(alt.InlineData(values=texts))
        .mark_text(align="right", dx=-12, dy=-7, fontSize=13, fontWeight="bold", lineHeight=16)
        .encode(x=alt.value(0), y=alt.Y("row:Q", scale=down, axis=rows), text="text:N", color=colour),
    ).properties(
        width=350, height=60 * len(names), background="transparent", padding={"left": 36, "right": 10, "bottom": 8}
    )
    look = {"labelColor": ink, "titleColor": ink, "gridColor": ink, "gridOpacity": 0.25, "domainColor": ink}
    return drawn.configure_axis(**look, tickColor=ink, labelFontSize=12, titleFontSize=13).configure_view(stroke=None)


def size(count: int) -> str:
    """Bytes, to read: 134 kB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def headers(preset: Preset) -> list[str]:
    """The columns of `rows`."""
    scale = SCALES[preset.name]
    return ["mechanism", "state bytes", *(f"n = {n}, rate {rate:g}" for n in scale.pairs for rate in scale.rates)]


def _accuracies(values: Sequence[float]) -> str:
    """ "0.998", or "0.992 to 0.999 (3)" of several seeds."""
    if not values:
        return NOT_RUN
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{min(values):.3f} to {max(values):.3f} ({len(values)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser("python -m evaluation.recall", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("command", nargs="?", choices=("show", "run", "draw"), default="show")
    parser.add_argument("--preset", choices=SCALES, default="quick")
    parser.add_argument("--jobs", type=int, metavar="N", help="training runs at a time")
    parser.add_argument(
        "--first",
        nargs="+",
        choices=CONTENDERS,
        default=["gated-vla"],
        metavar="CONTENDER",
        help="run these before the others",
    )
    parser.add_argument("--pairs", type=int, metavar="N", help="begin with this many pairs")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop and save after this time")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="folder of unfinished runs")
    given = parser.parse_args(arguments)
    preset = {each.name: each for each in (QUICK, FULL)}[given.preset]
    failed: list[tuple[str, str]] = []
    if given.command == "run":
        item = replace(ITEM, runs=partial(runs, first=given.first, pairs=given.pairs))
        outcome = reproduce(
            [item], preset, reports=given.records, runs=given.runs, jobs=given.jobs, device=given.device,
            minutes=given.minutes, say=say,
        )  # fmt: skip
        failed = outcome.failed
        say(f"{outcome.before} runs already recorded, {outcome.made} made now, {outcome.left} left")
    if given.command == "draw":
        from varla.report.curves import save

        results = load(given.records, preset.name)
        DOCS.write_text(page(results, preset))
        save(figure(points(results, preset)), FIGURE)
    columns = headers(preset)
    show(table(columns, rows(load(given.records, preset.name), preset), right=columns[1:]))
    for name, reason in failed:
        say(f"{name} failed: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
