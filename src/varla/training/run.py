"""The folder of a lab run: config.yaml, begun.json, metrics.jsonl, record.json, checkpoints/, tensorboard/.

And wandb.json and wandb/, if it reports there.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from varla.runs.folder import RunError, RunFolder
from varla.runs.metrics import with_current_names
from varla.runs.writing import naming, write_aside
from varla.training.config import RunConfig, from_dict

_NUMBERS = {"steps", "chance", "parameters", "state bytes"}  # in a record


class Run(RunFolder):
    """One run's files."""

    LEFTOVERS = (*RunFolder.LEFTOVERS, ".metrics.jsonl.*", "checkpoints/.step-*")

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.metrics_file = folder / "metrics.jsonl"  # one JSON object a line: what was logged at a step
        self.checkpoints = folder / "checkpoints"

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
        if not isinstance(final := found.get("final", {}), dict):
            raise RunError(f"{self.record_file} is damaged: `final` must hold metrics, got {final!r}")
        numbers = {f"final.{key}": value for key, value in final.items() if isinstance(value, int)}
        numbers |= {key: found[key] for key in _NUMBERS & found.keys()}
        for key, value in numbers.items():
            if value is not None and not (_is_number(value) and math.isfinite(value)):
                raise RunError(f"{self.record_file} is damaged: `{key}` must be a number, got {value!r}")
        return {**found, "final": with_current_names(final)} if found else found

    def begin(self, config: RunConfig, needed_bytes: int) -> None:
        """Begin a new run. Refuses a folder that holds a run, or lacks disk space. The caller holds the lock."""
        self.check_unused()
        self.check_room(needed_bytes)
        self.claim(config.to_dict())

    def check_room(self, needed_bytes: int) -> None:
        """Refuse a disk that is too full for the checkpoints, before hours are spent on training."""
        free = shutil.disk_usage(self.folder).free
        if free < needed_bytes:
            raise RunError(f"{self.folder} has {free:,} bytes free; checkpoints need about {needed_bytes:,}")

    def reopen(self, config: RunConfig) -> None:
        """Raise a RunError unless the folder holds this very run."""
        self.check_same(self.config().to_dict(), config.to_dict())

    def truncate_metrics(self, step: int) -> None:
        """Remove what was logged after `step`: the resumed run logs the same again."""
        kept = [line for line, entry in self._lines() if entry["step"] <= step]
        write_aside(self.metrics_file, "".join(line + "\n" for line in kept))

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with naming(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(line, what it says) of every line, without a last one that a kill cut short."""
        if not self.metrics_file.is_file():
            return
        *lines, _ = self.metrics_file.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if type(entry["step"]) is not int or not all(map(_is_number, entry.values())):
                    raise TypeError("metrics are numbers")
                yield line.decode(), with_current_names(entry)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise RunError(f"{self.metrics_file} is damaged: line {number} is not what a step logs") from error


def name_part(value: Any) -> str:
    """A setting's value as a part of a folder's name."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9.+_-]+", "_", text)


def _is_number(value: object) -> bool:
    """Whether a metric can have this value: any float (a diverged run logs NaN), or an integer that fits in 64 bits."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
