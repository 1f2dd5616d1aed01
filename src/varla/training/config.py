"""A run's settings: one nested, frozen value that YAML maps onto, with errors that name the nearest valid key."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from varla.arguments import check_choice, check_count, check_number, refuse_unknown

PRECISIONS = ("fp32", "bf16")
Config = TypeVar("Config")


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation. The defaults are the paper's; `warmup` is a share of the steps, `clip` a gradient norm.

    `graph`: on one GPU, a step is a CUDA graph, several times as fast for small models; elsewhere it changes nothing.
    """

    steps: int = 3000
    batch_size: int = 64
    lr: float = 3e-4
    warmup: float = 0.1
    weight_decay: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    clip: float = 1.0
    precision: str = "fp32"
    graph: bool = False
    log_every: int = 25
    eval_every: int = 250
    eval_batches: int = 15
    eval_batch_size: int = 64
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        """Check ranges; types were checked when the value was read."""
        for name in ("steps", "batch_size", "log_every", "eval_every", "eval_batches", "eval_batch_size"):
            check_count(f"train.{name}", getattr(self, name))
        check_count("train.checkpoint_every", self.checkpoint_every)
        for name in ("lr", "clip", "adam_eps"):
            check_number(f"train.{name}", getattr(self, name), above=0)
        for name in ("warmup", "weight_decay", "beta1", "beta2"):
            check_number(f"train.{name}", getattr(self, name), least=0)
        for name in ("warmup", "beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"train.{name} must be below 1, got {getattr(self, name)}")
        check_choice("train.precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class RunConfig:
    """One run. `task`: name and settings of the task; `model`, `layer`: changes to the preset's backbone and layer."""

    mechanism: str = "vla"
    preset: str = "paper"
    seed: int = 42
    task: Mapping[str, Any] = field(default_factory=lambda: {"name": "mqar", "n": 8})
    model: Mapping[str, Any] = field(default_factory=dict)
    layer: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, as YAML and JSON hold them; `from_dict` reads them back to an equal value."""
        found = dataclasses.asdict(self)
        return {**found, **{name: dict(found[name]) for name in ("task", "model", "layer")}}


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Read nested dictionaries. Unknown keys and wrong types are errors that name the key by its path."""
    return read(RunConfig, values)


def load(path: str | Path) -> dict[str, Any]:
    """The dictionary in a YAML file; errors name the file."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got {type(values).__name__}")
    return {key: numbers(value) for key, value in values.items()}


def complete(values: Mapping[str, Any], changed: Iterable[str]) -> dict[str, Any]:
    """Settings with the default task filled in, unless they or the changed keys choose one of their own.

    Without this, `task.n=16` alone would replace the default task by one that has no name.
    """
    own_task = "task" in values or "task.name" in changed
    return dict(values) if own_task else {**values, "task": dict(RunConfig().task)}


def override(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply `key=value` strings, keys by dotted path ("train.lr=1e-3"), to nested dictionaries; returns a copy."""
    result = _copy(values)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--set takes key=value, got {assignment!r}")
        *path, last = key.strip().split(".")
        place = result
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"--set {assignment}: {part!r} is a value, not a group of keys")
        try:
            place[last] = numbers(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise ValueError(f"--set {assignment}: {text!r} is not valid YAML") from error
    return result


def numbers(value: Any) -> Any:
    """The value, with every string that is a number in exponent notation as one: YAML 1.1 takes 1e-3 for text."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def dump(config: RunConfig) -> str:
    """The configuration as YAML."""
    return str(yaml.safe_dump(config.to_dict(), sort_keys=False))


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def read(kind: type[Config], values: Mapping[str, Any], path: str = "") -> Config:
    """A dataclass from nested dictionaries. Unknown keys and wrong types are errors that name the key by its path."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        refuse_unknown("key", f"{path}{key}", [f"{path}{name}" for name in known])
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise TypeError(f"{path}{key} must hold keys and values, got {value!r}")
            arguments[key] = read(typing.cast("type[Any]", hint), value, f"{path}{key}.")
        else:
            arguments[key] = _typed(f"{path}{key}", value, hint)
    return kind(**arguments)


def _typed(path: str, value: Any, hint: Any) -> Any:
    """The value if it is of the declared type; whole numbers are accepted where a fraction is declared."""
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        allowed = typing.get_args(hint)
    else:
        allowed = (origin or hint,)
    if isinstance(value, bool) and bool not in allowed:
        pass
    elif float in allowed and isinstance(value, int) and int not in allowed:
        return float(value)
    elif any(isinstance(value, kind) for kind in allowed):
        return value
    if allowed == (Mapping,):
        raise TypeError(f"{path} must hold keys and values, got {value!r}")
    names = " or ".join("keys and values" if kind is Mapping else kind.__name__ for kind in allowed)
    raise TypeError(f"{path} must be {names}, got {value!r}")
