"""Settings: from YAML and `key=value` strings to a frozen dataclass. Errors name the key by its path."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from varla.arguments import refuse_unknown
from varla.runs.safe_yaml import SIZE, parse

Settings = TypeVar("Settings")


def load(path: str | Path) -> dict[str, Any]:
    """The dictionary in a YAML file. Errors name the file."""
    with Path(path).open("rb") as file:
        content = file.read(SIZE + 1)  # not all of it: it may be a device that never ends
    try:
        values = parse(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys and values, got {type(values).__name__}")
    return {key: _numbers(value) for key, value in values.items()}


def dump(values: Mapping[str, Any]) -> str:
    """Nested dictionaries as YAML, in their own order."""
    return str(yaml.safe_dump(dict(values), sort_keys=False))


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
            if place.get(part) is None:  # an empty group in a file
                place[part] = {}
            place = place[part]
            if not isinstance(place, dict):
                raise ValueError(f"--set {assignment}: {part!r} is a value, not a group of keys")
        try:
            place[last] = _numbers(parse(text))
        except ValueError as error:
            shown = assignment if len(assignment) <= 80 else f"{assignment[:80]}..."
            raise ValueError(f"--set {shown}: the value is not valid YAML: {error}") from error
    return result


def read(kind: type[Settings], values: Mapping[str, Any], path: str = "") -> Settings:
    """A dataclass from nested dictionaries. Unknown keys and wrong types are errors that name the key by its path."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        refuse_unknown("key", f"{path}{key}", [f"{path}{name}" for name in known])
        hint = hints[key]
        if value is None and (dataclasses.is_dataclass(hint) or (typing.get_origin(hint) or hint) is Mapping):
            continue  # `train:` with nothing below it: the defaults
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise TypeError(f"{path}{key} must hold keys and values, got {value!r}")
            arguments[key] = read(typing.cast("type[Any]", hint), value, f"{path}{key}.")
        else:
            arguments[key] = _typed(f"{path}{key}", value, hint)
    return kind(**arguments)


def _numbers(value: Any) -> Any:
    """The value, with strings such as "1e-3" as numbers: YAML 1.1 reads exponents without a dot as text."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _typed(path: str, value: Any, hint: Any) -> Any:
    """The value if it has the declared type. An int is accepted where a float is declared."""
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        allowed = typing.get_args(hint)
    else:
        allowed = (origin or hint,)
    if isinstance(value, bool) and bool not in allowed:
        pass
    elif float in allowed and isinstance(value, int) and int not in allowed:
        return _float(path, value)
    elif any(isinstance(value, kind) for kind in allowed):
        if isinstance(value, Mapping) and (wrong := [key for key in value if not isinstance(key, str)]):
            raise TypeError(f"{path} must have names as keys, got {wrong[0]!r}")
        return value
    if allowed == (Mapping,):
        raise TypeError(f"{path} must hold keys and values, got {value!r}")
    names = " or ".join("keys and values" if kind is Mapping else kind.__name__ for kind in allowed)
    raise TypeError(f"{path} must be {names}, got {value!r}")


def _float(path: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{path} must be a number below 1.8e308, got one of {len(str(value))} digits") from None
