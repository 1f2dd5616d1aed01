"""Learning curves, as Altair charts that are legible without colour and files that open without a network."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

# Okabe and Ito's palette, told apart with any colour vision; yellow last, since it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
# Seven shapes and five dashes against eight colours: no two of the first 280 series look the same.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))
FORMATS = (".html", ".png", ".svg")


def learning_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str = "eval/eval", chance: float | None = None
) -> alt.LayerChart:
    """One line a run: `metric` against the step, with a grey rule at `chance`.

    `runs` maps a run's label to its metrics, as `Run.metrics()` gives them. Values that are not finite are left out.
    """
    points = [
        {"run": label, "step": entry["step"], "value": entry[metric]}
        for label, entries in runs.items()
        for entry in entries
        if metric in entry and math.isfinite(entry[metric])
    ]
    if not points:
        found = sorted({key for entries in runs.values() for entry in entries for key in entry} - {"step"})
        raise ValueError(f"no run has logged {metric!r} (logged: {', '.join(found) or 'nothing yet'})")
    labels = list(dict.fromkeys(str(point["run"]) for point in points))
    layers = [_lines(points, labels, metric)]
    if chance is not None:
        layers.append(_rule(chance))
    chart: alt.LayerChart = alt.layer(*layers).properties(width=560, height=320)
    return chart


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write a chart as .html (self-contained: its scripts are inside), .png or .svg."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"a plot is written as {', '.join(FORMATS)}, got {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".html":
        chart.save(str(path), format="html", inline=True)
    elif kind == ".png":
        chart.save(str(path), format="png", ppi=144)
    else:
        chart.save(str(path), format="svg")
    return path


def _lines(points: list[dict[str, Any]], labels: list[str], metric: str) -> alt.Chart:
    def look(choices: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=labels, range=[choices[i % len(choices)] for i in range(len(labels))])

    # Colour and shape share a legend; dashes are left out of it, where they would only fray the symbols.
    legend = alt.Legend(title=None, labelLimit=400)
    accuracy = metric.startswith("eval/") or metric == "accuracy"
    scale = alt.Scale(domain=[0, 1]) if accuracy else alt.Scale(zero=False)
    title = f"accuracy ({metric.removeprefix('eval/')})" if metric.startswith("eval/") else metric
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=points))
        .mark_line(point=alt.OverlayMarkDef(size=55, filled=True, opacity=1), strokeWidth=2)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("value:Q", title=title, scale=scale),
            color=alt.Color("run:N", scale=look(PALETTE), legend=legend),
            strokeDash=alt.StrokeDash("run:N", scale=look([list(dash) for dash in DASHES]), legend=None),
            shape=alt.Shape("run:N", scale=look(SHAPES), legend=legend),
            tooltip=[alt.Tooltip("run:N"), alt.Tooltip("step:Q"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return chart


def _rule(chance: float) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[{"value": chance, "label": f"chance {chance:.3g}"}]))
        .mark_rule(color="#666666", strokeDash=[3, 3])
        .encode(y=alt.Y("value:Q"), tooltip=[alt.Tooltip("label:N", title="level")])
    )
    return chart
