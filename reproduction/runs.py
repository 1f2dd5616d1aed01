"""The runs an item asks for: a training run, or a measurement by a function. Its settings identify a run."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from varla.training import RunConfig, from_dict


@dataclass(frozen=True)
class Preset:
    """A size for all items: `quick` takes minutes on two CPU cores, `full` has the paper's sizes and seeds."""

    name: str
    seeds: tuple[int, ...]

    @property
    def quick(self) -> bool:
        """Whether this is the small preset."""
        return self.name == "quick"


QUICK = Preset("quick", (42,))
FULL = Preset("full", (42, 123, 999))  # the paper's
PRESETS = {preset.name: preset for preset in (QUICK, FULL)}


@dataclass(frozen=True)
class Train:
    """A training run: nested settings, as `varla train` takes them."""

    settings: Mapping[str, Any]

    @cached_property
    def config(self) -> RunConfig:
        """The settings, checked and complete."""
        return from_dict(self.settings)

    @cached_property
    def key(self) -> str:
        """The same for the same settings, whether or not defaults are spelled out."""
        return key_of({"train": self.config.to_dict()})

    @property
    def label(self) -> str:
        """A line for people: the main settings."""
        c = self.config
        changes = {**c.task, **c.model, **c.layer}
        given = " ".join(f"{name}={value}" for name, value in changes.items() if name != "name")
        half = "" if c.train.precision == "fp32" else f" {c.train.precision}"
        return f"{c.mechanism} {c.task['name']} {given} seed={c.seed} steps={c.train.steps} lr={c.train.lr:g}{half}"


@dataclass(frozen=True)
class Measure:
    """A measurement: a function and its arguments. Arguments and result are JSON values.

    `timed`: the function takes times, so it runs with all threads and nothing runs beside it.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False

    @property
    def short_name(self) -> str:
        """The function as "module:name", without the packages above the module."""
        return f"{self.function.__module__.rpartition('.')[2]}:{self.function.__name__}"

    @property
    def recorded_name(self) -> str:
        """The function's name in records. The first records were made in the package `varla.experiments`."""
        return f"varla.experiments.{self.short_name}"

    @cached_property
    def key(self) -> str:
        """The same for the same function and arguments."""
        return key_of({"measure": self.recorded_name, "arguments": dict(self.arguments)})

    @property
    def label(self) -> str:
        """A line for people: the function and its arguments."""
        given = " ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.short_name} {given}".strip()

    def call(self) -> Any:
        """Measure now."""
        return self.function(**self.arguments)


Run = Train | Measure


def key_of(value: Any) -> str:
    """A hash of a JSON value, short enough for a file name."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
