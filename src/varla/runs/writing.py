"""Files and folders that are written whole or not at all, and errors that name them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_aside(path: Path, text: str) -> None:
    """Write a temporary file, then rename it: readers see the old file or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A new folder to write into, which then becomes `target`, or is removed after an error."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        with naming(target):
            move_into_place(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def move_into_place(aside: Path, target: Path) -> None:
    """Rename a folder that was written aside, once all its files are on the disk. A folder there before is removed.

    A kill leaves `target` whole or absent.
    """
    for path in sorted(aside.rglob("*")):
        if path.is_file():
            sync(path)
    sync(aside)
    remove(target)
    os.replace(aside, target)
    sync(target.parent)


def remove(folder: Path) -> None:
    """Remove a folder under another, hidden name: a kill leaves no half of it under its own."""
    if folder.exists():
        gone = folder.with_name(f".{folder.name}.gone.{os.getpid()}")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in an OSError that names none, or that names it where it is written aside.

    A write to a full disk does not say which file it was.
    """
    try:
        yield
    except OSError as error:
        # Files are written aside under a name that holds their own.
        named = error.filename is not None and Path(path).name not in Path(os.fsdecode(error.filename)).name
        if not named and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
