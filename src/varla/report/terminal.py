"""Learning curves as text, for terminals and logs. Each run has its own marker, so that colour is not needed."""

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from varla.report.series import Series, axis_title, colours, limits

MARKERS = "ox*+#@%&ABCDEFGH"  # only ASCII, which every terminal and log shows
_MARGIN = 9  # columns for the labels of the vertical axis
_LEAST, _MOST = 10, 90  # columns


def text_curves(found: Series, metric: str, chance: float | None = None, *, width: int = 80, height: int = 11) -> Text:
    """One curve per run, with a dotted line at `chance` and a legend, at most `width` characters wide.

    Where curves coincide, their markers alternate. Runs beyond the number of markers are left out and counted.
    """
    columns = min(max(width - _MARGIN - 1, _LEAST), _MOST)
    drawn = dict(list(found.items())[: len(MARKERS)])
    markers = [Text(marker, style=colour) for marker, colour in zip(MARKERS, colours(list(drawn)), strict=False)]
    steps = [step for points in drawn.values() for step, _ in points]
    low, high = limits([value for points in drawn.values() for _, value in points], metric, chance)
    first, span = min(steps), max(1, max(steps) - min(steps))

    def row(value: float) -> int:
        return round((height - 1) * (high - value) / (high - low))

    cells: dict[tuple[int, int], list[int]] = {}  # (row, column): the runs there
    for i, points in enumerate(drawn.values()):
        places, values = zip(*points, strict=True)
        start, end = (round((columns - 1) * (place - first) / span) for place in (places[0], places[-1]))
        for x in range(start, end + 1):
            value = np.interp(first + span * x / (columns - 1), places, values)
            cells.setdefault((row(float(value)), x), []).append(i)
    middle = (height - 1) // 2
    labels = {y: f"{high - (high - low) * y / (height - 1):.3g}" for y in (0, middle, height - 1)}
    level = row(chance) if chance is not None and low <= chance <= high else None  # a record may hold any number
    text = Text(axis_title(metric))
    for y in range(height):
        text.append(f"\n{labels.get(y, ''):>{_MARGIN - 1}} |")
        empty = "." if y == level else " "
        for x in range(columns):
            here = cells.get((y, x))
            text.append_text(markers[here[x % len(here)]] if here else Text(empty, style="dim"))
    text.append(f"\n{'+':>{_MARGIN + 1}}{'-' * columns}")
    ends = f"{min(steps)}{max(steps):>{columns - len(str(min(steps)))}}" if len(set(steps)) > 1 else str(first)
    text.append(f"\n{'step':>{_MARGIN}} {ends}")
    said = "" if chance is None else f"{'. ' if level is not None else ''}chance {chance:.3g}"
    said += " (outside the plot)" if said and level is None else ""
    return text.append_text(_legend(list(found), markers, said, max(width, _MARGIN + 1 + _LEAST)))


def _legend(labels: Sequence[str], markers: Sequence[Text], chance: str, width: int) -> Text:
    """One line per run. A long label is cut at its start, because names of a sweep differ at the end."""
    text = Text()
    for label, marker in zip(labels, markers, strict=False):
        room = width - 4
        text.append("\n  ").append_text(marker)
        text.append(f" {label if len(label) <= room else '...' + label[3 - room :]}")
    if chance:
        text.append(f"\n  {chance}")
    if len(labels) > len(MARKERS):
        text.append(
            f"\n  not drawn: {len(labels) - len(MARKERS)} more runs; name fewer, or see them all with --plot FILE"
        )
    return text
