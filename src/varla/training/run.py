"""A run's folder: config.yaml, metrics.jsonl, record.json, checkpoints/, tensorboard/."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varla.training import checkpoint
from varla.training.config import RunConfig, dump, from_dict, load


class RunError(ValueError):
    """The folder cannot be used as asked; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """Paths of one run."""

    folder: Path

    @property
    def config_file(self) -> Path:
        """The settings, as YAML."""
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line: what was logged at a step."""
        return self.folder / "metrics.jsonl"

    @property
    def record_file(self) -> Path:
        """Settings, versions, commit, device, wall time, final metrics, status."""
        return self.folder / "record.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.folder / "checkpoints"

    def config(self) -> RunConfig:
        """The settings that the run was made with."""
        if not self.config_file.is_file():
            raise RunError(f"{self.folder} holds no run: there is no {self.config_file.name} in it")
        return from_dict(load(self.config_file))

    def record(self) -> dict[str, Any]:
        """The record, empty before it is first written."""
        try:
            found = json.loads(self.record_file.read_text())
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            raise RunError(f"{self.record_file} is damaged: {error}") from error
        return dict(found)

    def metrics(self) -> list[dict[str, Any]]:
        """Everything logged, in order. A last line that a kill cut short is left out."""
        return [entry for _, entry in self._lines()]

    def begin(self, config: RunConfig, needed_bytes: int) -> None:
        """Make the folder for a new run; refuse one that is in use, cannot be written to, or has no room."""
        if self.config_file.exists():
            raise RunError(f"{self.folder} already holds a run: resume it, or choose another folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.check_room(needed_bytes)
            write_aside(self.config_file, dump(config))
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written to: {error.strerror or error}") from error

    def check_room(self, needed_bytes: int) -> None:
        """Refuse a disk with less free space, before hours are spent on what cannot be saved."""
        free = shutil.disk_usage(self.folder).free
        if free < needed_bytes:
            raise RunError(f"{self.folder} has {free:,} bytes free; checkpoints need about {needed_bytes:,}")

    def reopen(self, config: RunConfig) -> Path | None:
        """Check that the folder holds this very run; returns its newest checkpoint, None before the first."""
        before, now = self.config().to_dict(), config.to_dict()
        if before != now:
            keys = sorted(key for key in now if now[key] != before.get(key))
            raise RunError(
                f"{self.folder} was made with other settings of {', '.join(keys)}: it cannot be resumed with these"
            )
        return checkpoint.latest(self.checkpoints)

    @contextmanager
    def lock(self, take: bool = True) -> Iterator[None]:
        """Hold the folder for this process alone; the system lets go of it however the process ends.

        What killed processes left aside is removed then. Processes of one run share it: only the first takes it.
        """
        if not take:
            yield
            return
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(f"{self.folder} is being trained by another process") from error
            for left in (*self.folder.glob(".*.yaml.*"), *self.folder.glob(".*.json*.*")):
                left.unlink(missing_ok=True)
            for left in self.checkpoints.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    def truncate_metrics(self, step: int) -> None:
        """Forget what was logged after `step`: it will be logged again, the same."""
        kept = [line for line, entry in self._lines() if entry["step"] <= step]
        write_aside(self.metrics_file, "".join(line + "\n" for line in kept))

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record."""
        write_aside(self.record_file, json.dumps(record, indent=2) + "\n")

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.metrics_file.is_file():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield line, json.loads(line)
            except json.JSONDecodeError:
                return


def write_aside(path: Path, text: str) -> None:
    """Write a file under another name and rename it: readers see the old one or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
