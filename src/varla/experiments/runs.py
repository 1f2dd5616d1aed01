"""What experiments ask to have run: training, or a measurement by a function. A run is known by its settings."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from varla.training import RunConfig, from_dict


@dataclass(frozen=True)
class Preset:
    """A size of the whole: `quick` for two CPU cores and a quarter of an hour, `full` for the paper's sizes, seeds."""

    name: str
    seeds: tuple[int, ...]

    @property
    def quick(self) -> bool:
        """Whether it is the small one."""
        return self.name == "quick"


QUICK = Preset("quick", (42,))
FULL = Preset("full", (42, 123, 999))  # the paper's
PRESETS = {preset.name: preset for preset in (QUICK, FULL)}


@dataclass(frozen=True)
class Train:
    """A training run: settings as `varla train` takes them, nested."""

    settings: Mapping[str, Any]

    @cached_property
    def config(self) -> RunConfig:
        """The settings, checked and complete."""
        return from_dict(self.settings)

    @cached_property
    def key(self) -> str:
        """The same for the same settings, whatever was left out as a default."""
        return key_of({"train": self.config.to_dict()})

    @property
    def label(self) -> str:
        """For people."""
        c = self.config
        changes = {**c.task, **c.model, **c.layer}
        given = " ".join(f"{name}={value}" for name, value in changes.items() if name != "name")
        half = "" if c.train.precision == "fp32" else f" {c.train.precision}"
        return f"{c.mechanism} {c.task['name']} {given} seed={c.seed} steps={c.train.steps} lr={c.train.lr:g}{half}"


@dataclass(frozen=True)
class Measure:
    """A measurement: a function, "module:name", and its arguments, which are JSON; what it returns is JSON as well.

    `timed`: it takes times, and is not to run beside others.
    """

    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False

    @cached_property
    def key(self) -> str:
        """The same for the same function and arguments."""
        return key_of({"measure": self.function, "arguments": dict(self.arguments)})

    @property
    def label(self) -> str:
        """For people."""
        given = " ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.function.rsplit('.', 1)[-1]} {given}".strip()

    def call(self) -> Any:
        """Measure, now."""
        module, name = self.function.split(":")
        return getattr(import_module(module), name)(**self.arguments)


Run = Train | Measure


def key_of(value: Any) -> str:
    """A short name for a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
