"""A language model's training as one nested value that YAML maps onto.

model: {preset: 5m, mechanisms: vla}     # a preset and changes to it, or {folder: MODEL} to go on from weights
tokenizer: bytes                         # or a folder, or a name on the hub
data:
  train: [books/*.txt]                   # files (.txt: one document each; .jsonl: one a line), or {dataset: NAME, ...}
  validation: 0.01                       # files as above, or the last share of the training tokens
  context: 1024
train: {max_steps: 1000, learning_rate: 1e-3}    # transformers.TrainingArguments, by its own names
evaluate: {contexts: [512, 2048]}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from varla.arguments import check_count, check_number, refuse_unknown
from varla.training.config import read

# What `train` may not set, and why.
OURS = {
    "output_dir": "it is the run's folder: --out",
    "resume_from_checkpoint": "--resume goes on from the newest one",
    "seed": "it is the key `seed`",
    "data_seed": "it is the key `seed`",
    "remove_unused_columns": "batches are made of packed tokens",
    "label_names": "batches are made of packed tokens",
}
PRESET = "5m"  # of a model that names none
_SEEDS = 2**32
SOURCE = ("dataset", "config", "split", "column")


@dataclass(frozen=True)
class DataSettings:
    """Where text comes from, and how many tokens a row has."""

    train: str | list | Mapping = field(default_factory=list)  # type: ignore[type-arg]
    validation: str | list | Mapping | float = 0.01  # type: ignore[type-arg]
    context: int = 1024

    def __post_init__(self) -> None:
        """Check ranges and sources."""
        check_count("data.context", self.context, least=2)
        if isinstance(self.validation, float):
            check_number("data.validation", self.validation, least=0)
            if self.validation >= 1:
                raise ValueError(f"data.validation, as a share, must be below 1, got {self.validation}")
        _check_source("data.train", self.train)
        if not isinstance(self.validation, float):
            _check_source("data.validation", self.validation)


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
    """Context lengths that the trained model is scored at, and on how many validation tokens at the most."""

    contexts: list = field(default_factory=lambda: [512, 2048])  # type: ignore[type-arg]
    tokens: int = 1_000_000

    def __post_init__(self) -> None:
        """Check ranges."""
        check_count("evaluate.tokens", self.tokens, least=2)
        for context in self.contexts:
            check_count("evaluate.contexts", context, least=2)


@dataclass(frozen=True)
class LMSettings:
    """Everything that makes a language model's training."""

    model: Mapping = field(default_factory=dict)  # type: ignore[type-arg]
    tokenizer: str = "bytes"
    data: DataSettings = field(default_factory=DataSettings)
    train: Mapping = field(default_factory=dict)  # type: ignore[type-arg]
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    seed: int = 42

    def __post_init__(self) -> None:
        """Check what can be checked without transformers; its own names are checked when they are used."""
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
