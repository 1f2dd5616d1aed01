"""The Trainer's settings, checked before a folder is taken: the Trainer finds most mistakes at its first step alone."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from varla.arguments import check_count, check_flag, check_number, refuse_unknown

_COUNTS = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
_NOT_NEGATIVE = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "dataloader_num_workers")
_BELOW_ONE = ("adam_beta1", "adam_beta2")


def check_arguments(train: Mapping[str, Any]) -> None:
    """Raise an error that names the first key of `train` that is unknown, of another type or out of range."""
    hints = {field.name: field.type for field in dataclasses.fields(TrainingArguments) if field.init}
    for key, value in train.items():
        refuse_unknown("key", f"train.{key}", [f"train.{each}" for each in hints])
        _check_kind(f"train.{key}", value, hints[key])
        _check_range(key, value)


def _check_kind(name: str, value: object, hint: Any) -> None:
    """Whole numbers, numbers and flags, as they are declared; of others the Trainer takes more than it declares."""
    kinds = set(typing.get_args(hint)) or {hint}
    if value is None and type(None) in kinds:
        return
    kinds.discard(type(None))
    if kinds == {bool}:
        check_flag(name, value)
    elif kinds == {int} and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    elif kinds == {float} and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")


def _check_range(key: str, value: Any) -> None:
    name = f"train.{key}"
    if key in _COUNTS:
        check_count(name, value)
    if key in _NOT_NEGATIVE:
        check_number(name, value, least=0)
    if key in _BELOW_ONE and value >= 1:
        raise ValueError(f"{name} must be below 1, got {value!r}")
    if key == "num_train_epochs":
        check_number(name, value, above=0)
    if key == "max_steps" and value < 1 and value != -1:
        raise ValueError(f"{name} must be at least 1, or -1 (as many as num_train_epochs take), got {value!r}")
