"""How the commands print: tables and lines on stdout, complaints on stderr."""

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from varla.cli.streams import STANDARD_OUTPUT, visible
from varla.runs.metrics import eval_name, is_eval
from varla.runs.writing import naming

# Wide enough for every table: what reads a pipe does not want its columns folded.
_PIPE_WIDTH = 240


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table."""
    found = Console(highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(highlight=False, width=_PIPE_WIDTH)
    return found


def say(text: str = "") -> None:
    """Print text as it is. In a terminal, lines that are too long are folded between words, never within one."""
    found = console()
    if found.is_terminal:
        text = "\n".join(_fold(line, found.width) for line in text.split("\n"))
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
) -> "Grid":
    """A table of plain text; the columns named in `right` hold numbers."""
    return Grid(headers, [[visible(cell) for cell in row] for row in rows], right, title)


@dataclass(frozen=True)
class Grid:
    """A table that never breaks a word: where the columns do not fit side by side, every row is a list of its cells."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str]
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table, or the lists, in the width that there is."""
        widths = self._widths(options.max_width)
        if widths is None:
            yield Text(self._lists(options.max_width), no_wrap=True, overflow="ignore")
            return
        found = Table(title=Text(self.title) if self.title else None, title_justify="left")
        for header, width in zip(self.headers, widths, strict=True):
            found.add_column(Text(header), justify="right" if header in self.right else "left", width=width)
        for row in self.rows:
            found.add_row(*(Text(cell) for cell in row))
        yield found

    def _widths(self, room: int) -> list[int] | None:
        """The columns' widths, none below its longest word; None if there is no room for that."""
        columns = [[header, *cells] for header, *cells in zip(self.headers, *self.rows, strict=True)]
        widths = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
        wishes = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns]
        spare = room - sum(widths) - 3 * len(widths) - 1
        if spare < 0:
            return None
        for i in sorted(
            range(len(widths)), key=lambda i: wishes[i] - widths[i]
        ):  # as many as possible get all they wish
            given = min(spare, wishes[i] - widths[i])
            widths[i], spare = widths[i] + given, spare - given
        return widths

    def _lists(self, room: int) -> str:
        indent = max(cell_len(header) for header in self.headers) + 2
        blocks = [self.title] if self.title else []
        for row in self.rows:
            lines = []
            for header, cell in zip(self.headers, row, strict=True):
                if cell:
                    folded = _fold(cell, max(10, room - indent)).split("\n")
                    lines.append(f"{header:<{indent}}" + f"\n{'':<{indent}}".join(folded))
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks) + "\n"


def _fold(line: str, width: int) -> str:
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if len(line) > width else line


def show(found: "Grid") -> None:
    """Print a table. A word that is longer than the terminal is wide runs over its end."""
    _print(found, crop=False)


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
