"""Errors that say which file they are about."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system that happen in here name the file. Of its own, a write to a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise
