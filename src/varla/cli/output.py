"""How the commands print: tables and lines on stdout, complaints on stderr."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from varla.cli.streams import STANDARD_OUTPUT, visible
from varla.runs.metrics import eval_name, is_eval
from varla.runs.naming import naming

# Wide enough for every table: what reads a pipe does not want its columns folded.
_PIPE_WIDTH = 240


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table."""
    found = Console(highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(highlight=False, width=_PIPE_WIDTH)
    return found


def say(text: str = "") -> None:
    """Print text as it is, on as many lines as it has."""
    _print(Text(visible(text)), soft_wrap=True)


def complain(text: str) -> None:
    """Print an error to stderr, in red where there are colours."""
    note(f"error: {text}", style="red")


def note(text: str, style: str = "") -> None:
    """Print a remark to stderr: standard output is for results."""
    with suppress(OSError):  # a stream that cannot be written is no reason to fail
        Console(stderr=True, highlight=False).print(Text(visible(text), style=style), soft_wrap=True)


def _print(what: RenderableType, **options: Any) -> None:
    with naming(STANDARD_OUTPUT):
        console().print(what, **options)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), title: str = ""
) -> Table:
    """A table of plain text; the columns named in `right` hold numbers."""
    found = Table(title=title or None, title_justify="left")
    for header in headers:
        found.add_column(Text(header), justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        found.add_row(*(Text(cell) for cell in row))
    return found


def show(found: Table) -> None:
    """Print a table."""
    _print(found)


def draw(picture: Text) -> None:
    """Print a picture made of text, its lines cut where the terminal ends rather than folded."""
    _print(picture, no_wrap=True, overflow="crop")


def settings(values: Mapping[str, object]) -> str:
    """Settings on one line, as one would type them."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


def share(value: float | None) -> str:
    """An accuracy."""
    return "" if value is None else f"{value:.4f}"


def whole(value: float | None) -> str:
    """A number without decimals."""
    return "" if value is None else f"{value:,.0f}"


def accuracies(found: Mapping[str, object]) -> dict[str, float]:
    """The evaluations among logged values, by the name of what was evaluated on."""
    return {
        eval_name(key): float(value) for key, value in found.items() if is_eval(key) and isinstance(value, (int, float))
    }
