"""The settings of a language model's training: one nested, frozen value.

model: {preset: 5m, mechanisms: vla}     # a preset and changes to it, or {folder: MODEL} to start from its weights
tokenizer: bytes                         # or a folder, or a name on the hub
data:
  train: [books/*.txt]                   # files (.txt: one document; .jsonl: one per line), or {dataset: NAME, ...}
  validation: 0.01                       # files as above, or the last share of the training tokens
  context: 1024
train: {max_steps: 1000, learning_rate: 1e-3}    # transformers.TrainingArguments, by its own names
evaluate: {contexts: [512, 2048]}
"""

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from varla.arguments import check_count, check_flag, check_number, refuse_unknown
from varla.runs.settings import read

# Arguments of the Trainer that `train` may not set, and why.
OURS = {
    "output_dir": "it is the run's folder: --out",
    "resume_from_checkpoint": "--resume continues from the newest one",
    "seed": "it is the key `seed`",
    "data_seed": "it is the key `seed`",
    "remove_unused_columns": "batches are made of packed tokens",
    "label_names": "batches are made of packed tokens",
}
PRESET = "5m"  # if `model` names none
SOURCE = ("dataset", "config", "split", "column")
_SEEDS = 2**32
# Ranges of the Trainer's arguments.
_COUNTS = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
_NOT_NEGATIVE = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "dataloader_num_workers")
_BELOW_ONE = ("adam_beta1", "adam_beta2")
# What `varla train` calls them.
LAB_NAMES = {
    "lr": "learning_rate", "steps": "max_steps", "batch_size": "per_device_train_batch_size", "warmup": "warmup_steps",
    "beta1": "adam_beta1", "beta2": "adam_beta2", "adam_eps": "adam_epsilon", "clip": "max_grad_norm",
    "log_every": "logging_steps", "eval_every": "eval_steps", "checkpoint_every": "save_steps",
}  # fmt: skip


@dataclass(frozen=True)
class DataSettings:
    """Where the text comes from, and how many tokens a row has."""

    train: str | list | Mapping = field(default_factory=list)  # type: ignore[type-arg]
    validation: str | list | Mapping | float = 0.01  # type: ignore[type-arg]
    context: int = 1024

    def __post_init__(self) -> None:
        check_count("data.context", self.context, least=2)
        if isinstance(self.validation, float):
            check_number("data.validation, as a share,", self.validation, least=0, below=1)
        else:
            _check_source("data.validation", self.validation)
        _check_source("data.train", self.train)


def _check_source(path: str, source: str | list[Any] | Mapping[str, Any]) -> None:
    """Files by path or pattern, or a dataset by name."""
    if isinstance(source, Mapping):
        for key, value in source.items():
            refuse_unknown("key", f"{path}.{key}", [f"{path}.{each}" for each in SOURCE])
            if not isinstance(value, str) and not (value is None and key == "config"):
                raise TypeError(f"{path}.{key} must be text, got {value!r} ({type(value).__name__})")
        if "dataset" not in source:
            raise ValueError(f"{path} must be files, or name a dataset: {{dataset: NAME}}")
    elif isinstance(source, list):
        for each in source:
            if not isinstance(each, str):
                raise TypeError(f"{path} must be paths or patterns, got {each!r} ({type(each).__name__}) among them")


@dataclass(frozen=True)
class EvaluateSettings:
    """Context lengths to score the trained model at, and the largest number of validation tokens to score."""

    contexts: list = field(default_factory=lambda: [512, 2048])  # type: ignore[type-arg]
    tokens: int = 1_000_000

    def __post_init__(self) -> None:
        check_count("evaluate.tokens", self.tokens, least=2)
        for context in self.contexts:
            check_count("evaluate.contexts", context, least=2)


@dataclass(frozen=True)
class LMSettings:
    """All settings. `train` holds arguments of transformers.TrainingArguments, by their own names."""

    model: Mapping = field(default_factory=dict)  # type: ignore[type-arg]
    tokenizer: str = "bytes"
    data: DataSettings = field(default_factory=DataSettings)
    train: Mapping = field(default_factory=dict)  # type: ignore[type-arg]
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    seed: int = 42

    def __post_init__(self) -> None:
        """Check everything but the names in `train`, which need transformers: see `check_train`."""
        if not self.data.train:
            raise ValueError("data.train must name text: files such as [books/*.txt], or {dataset: NAME}")
        if "folder" not in self.model:
            object.__setattr__(self, "model", {"preset": PRESET, **self.model})
        elif len(self.model) > 1:
            raise ValueError("model.folder is a whole model: nothing beside it can be changed")
        elif not isinstance(folder := self.model["folder"], str):
            raise TypeError(f"model.folder must be a path, got {folder!r} ({type(folder).__name__})")
        check_count("seed", self.seed, least=0)
        if self.seed >= _SEEDS:
            raise ValueError(f"seed must be below 2**32, as NumPy's are, got {self.seed}")
        for name, reason in OURS.items():
            if name in self.train:
                raise ValueError(f"train.{name} cannot be set: {reason}")

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries; `from_dict` reads them back to an equal value."""
        return asdict(self)


def from_dict(values: Mapping[str, Any]) -> LMSettings:
    """Read nested dictionaries. Unknown keys and wrong types are errors that name the key by its path."""
    return read(LMSettings, values)


def check_train(train: Mapping[str, Any]) -> None:
    """Raise an error that names the first key of `train` that is unknown, of a wrong type or out of range.

    The Trainer itself would find most mistakes only at its first step.
    """
    from transformers import TrainingArguments

    hints = {each.name: each.type for each in fields(TrainingArguments) if each.init}
    for key, value in train.items():
        if key in LAB_NAMES:
            raise ValueError(f"unknown key 'train.{key}': here it is train.{LAB_NAMES[key]}, as the Trainer calls it")
        refuse_unknown("key", f"train.{key}", [f"train.{each}" for each in hints])
        _check_kind(f"train.{key}", value, hints[key])
        _check_range(key, value)


def _check_kind(name: str, value: object, hint: Any) -> None:
    """Check integers, numbers and flags. Of other types the Trainer accepts more than it declares."""
    kinds = set(typing.get_args(hint)) or {hint}
    if value is None and type(None) in kinds:
        return
    kinds.discard(type(None))
    if kinds == {bool}:
        check_flag(name, value)
    elif kinds == {int}:
        check_count(name, value, least=-(2**63))
    elif kinds == {float} and value not in (float("inf"), float("-inf")):  # max_grad_norm=inf: no clipping
        check_number(name, value)


def _check_range(key: str, value: Any) -> None:
    name = f"train.{key}"
    if key in _COUNTS:
        check_count(name, value)
    if key in _NOT_NEGATIVE:
        check_number(name, value, least=0, below=1 if key in _BELOW_ONE else None)
    if key == "num_train_epochs":
        check_number(name, value, above=0)
    if key == "max_steps" and value < 1 and value != -1:
        raise ValueError(f"{name} must be at least 1, or -1 (as many as num_train_epochs take), got {value!r}")
