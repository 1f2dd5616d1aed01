"""The folder of a run: config.yaml, begun.json, record.json, and a lock while a process works in it.

A process takes the lock, then looks at what the folder holds, then writes. Files are written aside and renamed.
"""

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TextIO

from varla.runs import settings
from varla.runs.writing import write_aside


class RunError(ValueError):
    """The folder cannot be used as asked. The message says why and what to do."""


class RunFolder:
    """The files that every run has."""

    # What a killed process may leave: temporary files and folders, by pattern.
    LEFTOVERS: ClassVar[tuple[str, ...]] = (".config.yaml.*", ".begun.json.*", ".record.json.*", ".wandb.json.*")

    def __init__(self, folder: Path):
        self.folder = folder
        self.config_file = folder / "config.yaml"  # the settings
        self.begun_file = folder / "begun.json"  # the settings at the start: shows whether config.yaml was edited since
        self.record_file = folder / "record.json"  # settings, versions, commit, device, time, final metrics, status
        self._lock_file = folder / ".lock"

    def read_config(self) -> dict[str, Any]:
        """The settings in config.yaml, as nested dictionaries."""
        if not self.config_file.is_file():
            raise RunError(f"{self.folder} holds no run: there is no {self.config_file.name} in it")
        return settings.load(self.config_file)

    def claim(self, values: Mapping[str, Any], **more: Any) -> None:
        """Write the settings, and `more` that must not change. From now on the folder holds this run."""
        write_json(self.begun_file, {"settings": values, **more})
        write_aside(self.config_file, settings.dump(values))  # last: this file marks the folder as taken

    def unclaim(self) -> None:
        """Undo `claim`."""
        self.config_file.unlink(missing_ok=True)
        self.begun_file.unlink(missing_ok=True)

    def begun(self) -> dict[str, Any]:
        """What the run began with; empty if there is no such file."""
        found = read_json(self.begun_file)
        if found and not isinstance(found.get("settings"), dict):
            raise RunError(f"{self.begun_file} is damaged: it holds no settings")
        return found

    def record(self) -> dict[str, Any]:
        """The record; empty until it is first written. Raises a RunError if it is damaged."""
        found = read_json(self.record_file)
        for key in ("status", "message"):
            if not isinstance(value := found.get(key), str | None):
                raise RunError(f"{self.record_file} is damaged: `{key}` must be text, got {str(value)[:40]}")
        return found

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record."""
        write_json(self.record_file, record)

    def check_unused(self) -> None:
        """Raise a RunError if the folder already holds a run."""
        if self.config_file.exists():
            raise RunError(f"{self.folder} already holds a run: resume it, or choose another folder")

    def check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise a RunError that names the changed settings if a run would resume with others than it began with.

        `before`: the settings in config.yaml, which may have been edited since.
        """
        if before != now:
            raise RunError(
                f"{self.folder} was made with other settings of {_changes(before, now)}: it cannot be resumed with "
                "these"
            )
        read = json.loads(_json(before))
        begun = self.begun().get("settings", read)
        if begun != read:
            raise RunError(
                f"{self.config_file} was edited after the run began. It was made with other settings of "
                f"{_changes(begun, read)}. Change them back to resume, or start a new run with the new ones"
            )

    @contextmanager
    def lock(self, take: bool = True) -> Iterator[None]:
        """Make the folder if needed, and keep other processes out. The system frees the lock however this one ends.

        Taking it removes the temporary files of killed processes. If no run begins, the folder is left as it was
        found. Of several processes in one run, only the first takes the lock.
        """
        if not take:
            yield
            return
        new = not self.folder.exists()
        with self._take():
            self._remove_leftovers()
            try:
                yield
            finally:
                if not self.config_file.exists():
                    self._lock_file.unlink()
                    if new:
                        with suppress(OSError):  # it holds something, such as the tokens of a text
                            self.folder.rmdir()

    def _take(self) -> TextIO:
        """The locked file. Its holder may remove it: then the lock is on nothing, and the next file is tried."""
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = self._lock_file.open("a")
            except FileNotFoundError:  # another process removed the folder just now
                continue
            except FileExistsError as error:
                with suppress(FileNotFoundError):
                    if not stat.S_ISDIR(self.folder.lstat().st_mode):
                        raise RunError(f"{self.folder} is a file: choose another folder") from error
                continue  # another process removed the folder just now
            except OSError as error:
                raise RunError(f"{self.folder} cannot be written to: {error.strerror or error}") from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), self._lock_file.stat()):
                    return file
            except BlockingIOError as error:
                file.close()
                raise RunError(f"{self.folder} is being trained by another process") from error
            except FileNotFoundError:
                pass
            except OSError as error:
                file.close()
                raise RunError(f"{self.folder} cannot be locked: {error.strerror or error}") from error
            file.close()

    def _remove_leftovers(self) -> None:
        for left in [path for pattern in self.LEFTOVERS for path in self.folder.glob(pattern)]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _json(values: Mapping[str, Any]) -> str:
    """Text of a file. YAML knows values that JSON does not, such as dates: they become text."""
    return json.dumps(values, indent=2, default=str) + "\n"


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write keys and values as JSON, whole or not at all."""
    write_aside(path, _json(values))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file does not exist. Raises a RunError that names a damaged file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(found, ensure_ascii=False).encode()  # half a character ("\ud800") cannot be printed: a ValueError
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} is damaged: it must hold keys and values, got {type(found).__name__}")
    return found


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that differ, by their paths, with both values."""
    old, new = _flat(before), _flat(now)
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key) or (key in old) != (key in new))
    return ", ".join(f"{key} ({old.get(key, 'not set')}, now {new.get(key, 'not set')})" for key in keys)


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found
