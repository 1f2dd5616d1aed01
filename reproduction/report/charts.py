"""A figure as an Altair chart. The paper's points are hollow and dashed, ours are filled and solid."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from reproduction.claims import Figure, Table
from reproduction.report.numbers import number
from reproduction.runs import key_of
from varla.report.curves import DASHES, SHAPES
from varla.report.embed import version
from varla.report.series import colours

WIDTH, HEIGHT = 640, 300
_LETTER, _SYMBOL = 6.5, 44  # pixels of a legend's letter, and of its symbol with the space around it
_APART = 24  # pixels between a legend's columns: a browser's font may be wider than the one that was measured
_MOST_MARKERS = 24  # per line: more would hide it
_MOST_TICKS = 12
_INK = "#808080"  # of a picture's words and axes: legible on white and on black
_SIZES = {"paper": 110, "ours": 45}  # where both meet, a ring around a dot

Point = dict[str, Any]


def chart(figure: Figure) -> alt.LayerChart:
    """One line per series and source, with bars or a band from `low` to `high`. No point to draw is a ValueError."""
    points = drawable(figure)
    if not points:
        raise ValueError(f"figure {figure.name} has no point to draw")
    series = list(dict.fromkeys(point["series"] for point in points))
    sources = _sources(points)
    x, y = _x(figure, points), _y(figure, points)
    legend = alt.Legend(title=None, symbolOpacity=1)
    colour = alt.Color("series:N", scale=_look(series, colours(series)), legend=legend)
    shape = alt.Shape("series:N", scale=_look(series, SHAPES), legend=legend)
    base = alt.Chart().encode(x=x, y=y, color=colour)
    layers: list[alt.Chart] = []
    if any("low" in point for point in points):
        layers.append(_spreads(base, points, figure.y))
    if _numeric(points):
        dash = alt.StrokeDash(
            "source:N",
            scale=alt.Scale(domain=sources, range=[_dash(source, sources) for source in sources]),
            legend=alt.Legend(title=None, symbolType="stroke", symbolSize=400) if len(sources) > 1 else None,
        )
        line = base.mark_line(strokeWidth=2).encode(strokeDash=dash, detail="source:N")
        layers.append(line)
    tooltip = _tooltip(figure, points)
    for source in sources:
        chosen = base.transform_filter((alt.datum.source == source) & alt.datum.dot)
        size = _SIZES.get(source, 20)
        mark = chosen.mark_point(filled=source != "paper", size=size, strokeWidth=1.8, opacity=1)
        layers.append(mark.encode(shape=shape, tooltip=tooltip))
    found: alt.LayerChart = alt.layer(*layers, data=alt.InlineData(values=points)).properties(height=HEIGHT)
    return found


def svg(figure: Figure, width: int = WIDTH) -> str:
    """The chart as a picture. It ends in a comment with a hash of what it shows, by which an outdated one is found."""
    points = drawable(figure)
    columns = _columns([point["series"] for point in points], _sources(points) if _numeric(points) else [])
    titled = (
        chart(figure)
        .properties(
            width=width,
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            title=alt.TitleParams(
                figure.title, subtitle=look(figure), anchor="start", limit=width, color=_INK, subtitleColor=_INK
            ),
            background="transparent",
        )
        .configure_legend(
            orient="bottom", direction="horizontal", columns=columns, labelFontSize=12, labelLimit=0,
            symbolStrokeColor=_INK, labelColor=_INK, columnPadding=_APART,
        )
        .configure_axis(
            labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelColor=_INK, titleColor=_INK,
            gridColor=_INK, gridOpacity=0.25, domainColor=_INK, tickColor=_INK,
        )
        .configure_view(strokeOpacity=0)
    )  # fmt: skip
    drawn = titled.to_dict()
    drawn["config"]["legend"]["layout"] = {"bottom": {"margin": _APART}}  # Altair knows no such setting
    picture = vl_convert.vegalite_to_svg(drawn, vl_version=version())
    return f"{picture.rstrip()}\n{stamp(figure)}\n"


def stamp(figure: Figure) -> str:
    """A comment with a hash of the figure's data and colours."""
    shown = [figure.title, figure.x, figure.y, figure.log_x, figure.log_y, [dict(point) for point in figure.points]]
    shown += [colours(list(dict.fromkeys(point["series"] for point in figure.points)))]
    shown += [figure.spread] if any("low" in point for point in figure.points) else []
    return f"<!-- data {key_of(shown)} -->"


def look(figure: Figure) -> str:
    """How to read the figure: the line below its title."""
    points = drawable(figure)
    sources = _sources(points)
    words = {"paper": "hollow: paper", "ours": "filled: ours"}
    if _numeric(points):
        words = {"paper": "hollow, dashed: paper", "ours": "filled, solid: ours"}
    parts = [words[source] for source in sources if source in words]
    if any("low" in point for point in points):
        parts.append(f"{'bars' if _short(points) else 'bands'}: {figure.spread}")
    if sources == ["paper"]:
        parts.append("ours: not run yet")
    if left := len(figure.points) - len(points):
        parts.append(f"{left} {'point' if left == 1 else 'points'} not finite or not positive, left out")
    return "; ".join(parts)


def numbers(figure: Figure, most: int = 60) -> Table:
    """The points as a table: a row per series and x, a column per source. If they are too many, some are left out."""
    sources = _sources(figure.points)
    cells: dict[tuple[Any, Any], dict[str, str]] = {}
    for point in figure.points:
        cells.setdefault((point["series"], point["x"]), {})[point["source"]] = _cell(point)
    rows = [(*place, *(found.get(source, "") for source in sources)) for place, found in cells.items()]
    note = ""
    if len(rows) > most:
        given = [row for row, found in zip(rows, cells.values(), strict=True) if "paper" in found]
        kept = given if 0 < len(given) <= most else rows[::-1][:: math.ceil(len(rows) / most)][::-1]
        note, rows = f"{len(kept)} of {len(rows)} rows; all are in the records", kept
    shown = [(str(row[0]), number(row[1]), *row[2:]) for row in rows]
    return Table(figure.title, ("series", figure.x, *sources), shown, note)


def drawable(figure: Figure) -> list[Point]:
    """The points that can be drawn, without spreads that cannot. `dot` says which points get a marker."""
    found: list[Point] = []
    lines: dict[tuple[str, str], list[Point]] = {}
    for given in figure.points:
        point = {name: given[name] for name in ("x", "y")}
        if not _fits(point["y"], figure.log_y) or (figure.log_x and not _fits(point["x"], True)):
            continue
        point.update(series=str(given["series"]), source=str(given["source"]), dot=False)
        low, high = given.get("low"), given.get("high")
        if _fits(low, figure.log_y) and _fits(high, figure.log_y) and low != high:
            point.update(low=low, high=high)
        found.append(point)
        lines.setdefault((point["series"], point["source"]), []).append(point)
    for line in lines.values():
        for point in _marked(line, figure.log_x):
            point["dot"] = True
    return found


def _marked(line: Sequence[Point], log: bool) -> list[Point]:
    """The points that get a marker: all, or some at even distances on the axis."""
    if len(line) <= _MOST_MARKERS:
        return list(line)
    steps = [i / (_MOST_MARKERS - 1) for i in range(_MOST_MARKERS)]
    places = [len(line) ** step if log else 1 + (len(line) - 1) * step for step in steps]
    return [line[i] for i in sorted({round(place) - 1 for place in places})]


def _fits(value: Any, positive: bool) -> bool:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return known and (value > 0 or not positive)


def _numeric(points: Sequence[Mapping[str, Any]]) -> bool:
    return all(isinstance(point["x"], (int, float)) for point in points)


def _short(points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every point has a marker: then spreads are bars, otherwise bands."""
    return all(point["dot"] for point in points) or not _numeric(points)


def _sources(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sources in order: the paper, ours, others."""
    found = dict.fromkeys(str(point["source"]) for point in points)
    return sorted(found, key=lambda source: {"paper": 0, "ours": 1}.get(source, 2))


def _dash(source: str, sources: Sequence[str]) -> list[int]:
    if source in ("ours", "paper"):
        return list(DASHES[0] if source == "ours" else DASHES[1])
    others = [each for each in sources if each not in ("ours", "paper")]
    return list(DASHES[2 + others.index(source) % (len(DASHES) - 2)])


def _columns(series: Sequence[str], sources: Sequence[str]) -> int:
    """Columns of the legend: as many as fit below the chart, beside the legend of the sources. At most 4."""
    beside = max((_LETTER * len(source) + _SYMBOL for source in sources), default=0)
    widest = max(_LETTER * len(each) + _SYMBOL for each in series)
    return max(1, min(4, int((WIDTH - beside - _SYMBOL) // widest)))


def _look(domain: list[str], choices: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=domain, range=[choices[i % len(choices)] for i in range(len(domain))])


def _x(figure: Figure, points: Sequence[Point]) -> alt.X:
    if not _numeric(points):
        return alt.X("x:N", title=figure.x, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=120))
    places = sorted({point["x"] for point in points})
    few = {"values": places} if len(places) <= _MOST_TICKS else {}
    axis = alt.Axis(**{"labelOverlap": True, **_ticks(places, figure.log_x), **few})
    kind: dict[str, Any] = {"type": "log"} if figure.log_x else {"zero": False}
    return alt.X("x:Q", title=figure.x, scale=alt.Scale(nice=False, padding=12, **kind), axis=axis)


def _y(figure: Figure, points: Sequence[Point]) -> alt.Y:
    values = [point[name] for point in points for name in ("y", "low", "high") if name in point]
    if figure.log_y:
        return alt.Y("y:Q", title=figure.y, scale=alt.Scale(type="log"), axis=alt.Axis(**_ticks(values, True)))
    accuracy = "accuracy" in figure.y and min(values) >= 0 and max(values) <= 1
    scale = alt.Scale(domain=[0, 1]) if accuracy else alt.Scale(zero=not _numeric(points))
    return alt.Y("y:Q", title=figure.y, scale=scale)


def _ticks(values: Sequence[float], log: bool) -> dict[str, Any]:
    """The numbers on an axis: on a logarithmic one powers of ten, or 1, 2 and 5 times these if it is short."""
    low, high = min(values), max(values)
    plain = ".12~g" if max(abs(low), abs(high)) < 1e5 else "~s"  # without 12, Vega would write 1e+2
    if not log:
        return {"format": plain}
    ends = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if high < 100 * low:
        return {"values": [size * 10.0**k for k in range(ends[0], ends[1] + 1) for size in (1, 2, 5)], "format": plain}
    step = math.ceil((ends[1] - ends[0]) / 10)
    exponents = range(ends[0], ends[1] + 1, step)
    return {"values": [10.0**k for k in exponents], "format": "~g" if ends[0] >= -4 and ends[1] <= 5 else ".0e"}


def _spreads(base: alt.Chart, points: Sequence[Point], title: str) -> alt.Chart:
    some = base.transform_filter("isValid(datum.low)")
    mark = some.mark_rule(strokeWidth=2, opacity=0.7) if _short(points) else some.mark_area(opacity=0.2)
    drawn: alt.Chart = mark.encode(y=alt.Y("low:Q", title=title), y2="high:Q", detail="source:N")
    return drawn


def _tooltip(figure: Figure, points: Sequence[Point]) -> list[alt.Tooltip]:
    x = alt.Tooltip("x:Q", title=figure.x, format="~g") if _numeric(points) else alt.Tooltip("x:N", title=figure.x)
    shown = [alt.Tooltip("series:N"), alt.Tooltip("source:N"), x, alt.Tooltip("y:Q", title=figure.y, format=".4~g")]
    if any("low" in point for point in points):
        shown += [alt.Tooltip(f"{name}:Q", title=name, format=".4~g") for name in ("low", "high")]
    return shown


def _cell(point: Mapping[str, Any]) -> str:
    low, high = point.get("low"), point.get("high")
    ends = f" ({number(low)} to {number(high)})" if low is not None and high is not None and low != high else ""
    return number(point["y"]) + ends
