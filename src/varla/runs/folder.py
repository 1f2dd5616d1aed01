"""The folder of a run: config.yaml, record.json, and a lock while a process works in it."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varla.runs import settings


class RunError(ValueError):
    """The folder cannot be used as asked. The message says why and what to do."""


@dataclass(frozen=True)
class RunFolder:
    """The files that every run has."""

    folder: Path

    @property
    def config_file(self) -> Path:
        """The settings, as YAML."""
        return self.folder / "config.yaml"

    @property
    def record_file(self) -> Path:
        """Settings, versions, commit, device, wall time, final metrics, status."""
        return self.folder / "record.json"

    def read_config(self) -> dict[str, Any]:
        """The settings that the run was made with, as nested dictionaries."""
        if not self.config_file.is_file():
            raise RunError(f"{self.folder} holds no run: there is no {self.config_file.name} in it")
        return settings.load(self.config_file)

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write the settings. From now on the folder holds this run."""
        write_aside(self.config_file, settings.dump(values))

    def record(self) -> dict[str, Any]:
        """The record; empty until it is first written."""
        try:
            return dict(json.loads(self.record_file.read_text()))
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            raise RunError(f"{self.record_file} is damaged: {error}") from error

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record."""
        write_aside(self.record_file, json.dumps(record, indent=2) + "\n")

    def check_unused(self) -> None:
        """Raise a RunError if the folder already holds a run."""
        if self.config_file.exists():
            raise RunError(f"{self.folder} already holds a run: resume it, or choose another folder")

    def check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise a RunError that names the changed keys if a resumed run has other settings than it began with."""
        if before != now:
            keys = ", ".join(sorted(key for key in now if now[key] != before.get(key)))
            raise RunError(f"{self.folder} was made with other settings of {keys}: it cannot be resumed with these")

    @contextmanager
    def lock(self, take: bool = True) -> Iterator[None]:
        """Keep other processes out of the folder. The system releases the lock however this process ends.

        Taking it removes the temporary files of killed processes. Of several processes in one run, only the first
        takes it.
        """
        if not take:
            yield
            return
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"{self.folder} is being trained by another process") from error
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        for left in (*self.folder.glob(".*.yaml.*"), *self.folder.glob(".*.json*.*")):
            left.unlink(missing_ok=True)


def write_aside(path: Path, text: str) -> None:
    """Write a temporary file, then rename it: readers see the old file or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
