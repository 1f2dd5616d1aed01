"""One sequence as a readable table."""

from itertools import groupby
from typing import NamedTuple

WIDTH = 100
# Of a longer run of filler, only the first and last two columns are shown.
SHORT_RUN = 6
LABELS = ("position", "input", "scored", "answer")


class Column(NamedTuple):
    """One position: its number, its token, "?" if its output is scored, and then the right answer."""

    position: str
    token: str
    scored: str
    answer: str


def columns(tokens: list[str], answers: list[str | None], filler: list[bool]) -> list[Column]:
    """One column per position, without the middle of long runs of unscored filler."""
    shown = [
        Column(str(t), token, "." if answer is None else "?", answer or "")
        for t, (token, answer) in enumerate(zip(tokens, answers, strict=True))
    ]
    quiet = [is_filler and answer is None for is_filler, answer in zip(filler, answers, strict=True)]
    kept: list[Column] = []
    for is_quiet, group in groupby(zip(quiet, shown, strict=True), key=lambda pair: pair[0]):
        run = [column for _, column in group]
        if is_quiet and len(run) > SHORT_RUN:
            run = [*run[:2], Column("...", f"({len(run) - 4} more)", "...", ""), *run[-2:]]
        kept += run
    return kept


def table(shown: list[Column]) -> str:
    """The columns side by side, in blocks of lines that fit a terminal."""
    margin = max(map(len, LABELS))
    blocks: list[list[str]] = []
    for column in shown:
        width = max(map(len, column))
        if not blocks or len(blocks[-1][0]) + 2 + width > WIDTH:
            blocks.append([label.ljust(margin) for label in LABELS])
        blocks[-1] = [f"{line}  {cell.rjust(width)}" for line, cell in zip(blocks[-1], column, strict=True)]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks)
