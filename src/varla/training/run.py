"""The folder of a lab run: config.yaml, metrics.jsonl, record.json, checkpoints/, tensorboard/."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from varla.runs.folder import RunError, RunFolder, write_aside
from varla.runs.metrics import with_current_names
from varla.training import checkpoint
from varla.training.config import RunConfig, from_dict


class Run(RunFolder):
    """One run's files."""

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line: what was logged at a step."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.folder / "checkpoints"

    def config(self) -> RunConfig:
        """The settings that the run was made with."""
        values = self.read_config()
        try:
            return from_dict(values)
        except (ValueError, TypeError) as error:  # a command may read several runs: say which
            raise RunError(f"{self.config_file}: {error}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Everything logged, in order. Leaves out a last line that a kill cut short."""
        return [entry for _, entry in self._lines()]

    def record(self) -> dict[str, Any]:
        """The record; empty until it is first written."""
        found = super().record()
        return {**found, "final": with_current_names(found["final"])} if "final" in found else found

    def begin(self, config: RunConfig, needed_bytes: int) -> None:
        """Make the folder of a new run. Refuses one that holds a run, cannot be written to, or lacks disk space."""
        self.check_unused()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.check_room(needed_bytes)
            self.write_config(config.to_dict())
        except OSError as error:
            raise RunError(f"{self.folder} cannot be written to: {error.strerror or error}") from error

    def check_room(self, needed_bytes: int) -> None:
        """Refuse a disk that is too full for the checkpoints, before hours are spent on training."""
        free = shutil.disk_usage(self.folder).free
        if free < needed_bytes:
            raise RunError(f"{self.folder} has {free:,} bytes free; checkpoints need about {needed_bytes:,}")

    def reopen(self, config: RunConfig) -> Path | None:
        """Check that the folder holds this very run; returns its newest checkpoint, None before the first."""
        self.check_same(self.config().to_dict(), config.to_dict())
        return checkpoint.latest(self.checkpoints)

    def truncate_metrics(self, step: int) -> None:
        """Remove what was logged after `step`: the resumed run logs the same again."""
        kept = [line for line, entry in self._lines() if entry["step"] <= step]
        write_aside(self.metrics_file, "".join(line + "\n" for line in kept))

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _remove_leftovers(self) -> None:
        super()._remove_leftovers()
        for left in self.checkpoints.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.metrics_file.is_file():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield line, with_current_names(json.loads(line))
            except json.JSONDecodeError:
                return
