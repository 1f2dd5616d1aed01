"""Learning curves as Altair charts that are legible without colour, and as pictures."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from varla.report.series import axis_title, colours, limits, series
from varla.runs.metrics import EVAL
from varla.runs.writing import naming

# With seven shapes, five dashes and eight colours, the first 280 series all look different.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))
PICTURES: dict[str, dict[str, Any]] = {".png": {"ppi": 144}, ".svg": {}}
PLOTS = (".html", *PICTURES)  # a page (`varla.report.comparison`), or a picture


def learning_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str = EVAL, chance: float | None = None
) -> alt.LayerChart:
    """One line per run: `metric` against the step, with a grey rule at `chance`. `runs` as for `series`."""
    found = series(runs, metric)
    points = [{"run": label, "step": step, "value": value} for label, each in found.items() for step, value in each]
    low, high = limits([value for each in found.values() for _, value in each], metric, chance)
    layers = [lines(points, list(found), "step", axis_title(metric), alt.Scale(domain=[low, high], nice=False))]
    if chance is not None and low <= chance <= high:
        layers.append(_rule(chance))
    chart: alt.LayerChart = alt.layer(*layers).properties(width=560, height=320)
    return chart


def check_target(path: str | Path, kinds: Sequence[str] = PLOTS) -> None:
    """Raise a ValueError unless a plot can be written there: the ending is known, and nothing is in the way."""
    path = Path(path)
    if path.suffix.lower() not in kinds:
        raise ValueError(f"a plot is written as {', '.join(kinds)}, got {path.name!r}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a plot is a file")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{path} cannot be written: {above} is not a folder")
    if not os.access(above, os.W_OK):
        raise ValueError(f"{path} cannot be written: {above} does not allow it")


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write a chart as .png or .svg: aside, then renamed, so that it is whole."""
    path = Path(path)
    check_target(path, tuple(PICTURES))
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower()
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            # Names stand in the legend in full.
            chart.configure_legend(labelLimit=0).save(str(aside), format=kind[1:], **PICTURES[kind])
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def lines(points: list[dict[str, Any]], labels: list[str], x: str, y: str, scale: Any = alt.Undefined) -> alt.Chart:
    """One line for each label, through points with the keys "run", `x` and "value"; `y` is the title of that axis.

    A label without points is not in the legend. It still counts: a run looks the same in all charts with these labels.
    """
    present = {point["run"] for point in points}
    drawn = [i for i, label in enumerate(labels) if label in present]

    def look(choices: Sequence[Any], *other: str) -> alt.Scale:
        names = [*(labels[i] for i in drawn), *other]
        return alt.Scale(domain=names, range=[choices[i % len(choices)] for i in drawn] + [choices[0]] * len(other))

    # Colour and shape share a legend. Dashes would make its symbols hard to read. Vega-Lite merges the legends of
    # scales with equal domains, whether they are shown or not: so the dashes have one name more.
    legend = alt.Legend(title=None, symbolOpacity=1)
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=points))
        .mark_line(point=alt.OverlayMarkDef(size=55, filled=True, opacity=1), strokeWidth=2)
        .encode(
            x=alt.X(f"{x}:Q"),
            y=alt.Y("value:Q", title=y, scale=scale),
            color=alt.Color("run:N", scale=look(colours(labels)), legend=legend),
            strokeDash=alt.StrokeDash("run:N", scale=look([list(dash) for dash in DASHES], ""), legend=None),
            shape=alt.Shape("run:N", scale=look(SHAPES), legend=legend),
            tooltip=[alt.Tooltip("run:N"), alt.Tooltip(f"{x}:Q"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return chart


def _rule(chance: float) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=[{"value": chance, "label": f"chance {chance:.3g}"}]))
        .mark_rule(color="#808080", strokeDash=[3, 3])
        .encode(y=alt.Y("value:Q"), tooltip=[alt.Tooltip("label:N", title="level")])
    )
    return chart
