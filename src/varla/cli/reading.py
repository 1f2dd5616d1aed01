"""Progress while a long text is read: on stderr, in a terminal, gone at the end."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from varla.runs.writing import naming


@contextmanager
def reading(name: str, file: BinaryIO) -> Iterator[Iterator[str]]:
    """The text of a file in pieces. Meanwhile a terminal shows how much of it was read."""
    from varla.session.text import read_utf8

    def named() -> Iterator[str]:
        with naming(name):  # a device that fails names no file
            yield from read_utf8(file, name)

    pieces = named()
    if not sys.stderr.isatty():
        yield pieces
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=_size(file))

        def watched() -> Iterator[str]:
            for piece in pieces:
                yield piece  # read by the model before the next one is asked for
                bar.advance(task, len(piece.encode()))

        yield watched()


def _size(file: BinaryIO) -> int | None:
    """Bytes of a regular file; None for a pipe."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):  # not a real file: a test's
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
