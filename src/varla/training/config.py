"""A run's settings: one nested, frozen value."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from varla.arguments import check_choice, check_count, check_number
from varla.runs.reporting import TENSORBOARD, report_names
from varla.runs.settings import read

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation. The defaults are the paper's. `warmup` is a share of the steps, `clip` a gradient norm.

    `graph`: run each step as a CUDA graph. Needs one GPU and is ignored elsewhere. Several times as fast for small
    models. `report_to`: where metrics go beside metrics.jsonl.
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
    report_to: str | list = TENSORBOARD  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        """Check ranges; types were checked when the value was read."""
        intervals = ("log_every", "eval_every", "checkpoint_every")
        for name in ("steps", "batch_size", "eval_batches", "eval_batch_size", *intervals):
            check_count(f"train.{name}", getattr(self, name))
        for name in ("lr", "clip", "adam_eps"):
            check_number(f"train.{name}", getattr(self, name), above=0)
        check_number("train.weight_decay", self.weight_decay, least=0)
        for name in ("warmup", "beta1", "beta2"):
            check_number(f"train.{name}", getattr(self, name), least=0, below=1)
        check_choice("train.precision", self.precision, PRECISIONS)
        report_names("train.report_to", self.report_to)


@dataclass(frozen=True)
class RunConfig:
    """One run. `task`: its name and settings; `model`, `layer`: changes to the preset's decoder and mixer layer."""

    mechanism: str = "vla"
    preset: str = "paper"
    seed: int = 42
    task: Mapping[str, Any] = field(default_factory=lambda: {"name": "mqar", "n": 8})
    model: Mapping[str, Any] = field(default_factory=dict)
    layer: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        """Check the seed. Other values are checked by what they are for."""
        check_count("seed", self.seed, least=-(2**63))

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, as YAML and JSON hold them; `from_dict` reads them back to an equal value.

        The default of `train.report_to` is left out: runs and records from before that setting are the same runs.
        """
        values = asdict(self)
        if self.train.report_to == TENSORBOARD:
            del values["train"]["report_to"]
        return values


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Read nested dictionaries. Unknown keys and wrong types are errors that name the key by its path."""
    return read(RunConfig, values)


def complete(values: Mapping[str, Any], changed: Iterable[str]) -> dict[str, Any]:
    """Fill in the default task, unless the settings or the changed keys name one.

    Without this, `task.n=16` alone would replace the default task by one without a name.
    """
    task = values.get("task")
    if "task.name" in changed or (task is not None and (not isinstance(task, Mapping) or "name" in task)):
        return dict(values)
    return {**values, "task": {**RunConfig().task, **(task or {})}}
