"""`--show-config`: every setting with its value and its meaning, as YAML that the same command reads."""

import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import TYPE_CHECKING, Any

import yaml

from varla.cli.meanings import TRAIN, TRAIN_LM

if TYPE_CHECKING:
    from varla.lm.settings import LMSettings
    from varla.training import RunConfig

_COLUMN = 32  # where meanings begin


def lab_settings(config: "RunConfig") -> str:
    """The settings of `varla train`, also those that the preset, the task and the mechanism bring along."""
    from varla.layers import MECHANISMS, options_of
    from varla.training import build_model, build_task

    task, model = build_task(config).settings(), asdict(build_model(config).config)
    layer = {**options_of(MECHANISMS[config.mechanism]), **model.pop("layer")}
    del model["mechanism"]
    given = asdict(config)
    derived = {f"task.{name}" for name in ("seq_len",) if name not in given["task"]}
    derived |= {f"model.{name}" for name in ("vocab_size", "max_len") if name not in given["model"]}
    return document({**given, "task": task, "model": model, "layer": layer}, TRAIN, derived)


def language_settings(settings: "LMSettings") -> str:
    """The settings of `varla train-lm`; arguments of the Trainer that have its own defaults are comments."""
    from transformers import TrainingArguments

    from varla.lm.settings import OURS
    from varla.lm.training import DEFAULTS
    from varla.models import VarlaConfig, preset

    values = settings.to_dict()
    model, derived = dict(values["model"]), set()
    if "folder" not in model:
        changes = {name: value for name, value in model.items() if name != "preset"}
        made = preset(model["preset"], **changes)
        whole = {name: getattr(made, name) for name in VarlaConfig.__annotations__ if hasattr(made, name)}
        whole = {name: value for name, value in whole.items() if f"model.{name}" in TRAIN_LM}
        model = {"preset": model["preset"], **whole}
        follow = ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
        derived = {f"model.{name}" for name in follow if name not in changes}
    own = {each.name: each for each in fields(TrainingArguments) if each.init and each.name not in OURS}
    train = {**DEFAULTS, **values["train"]}
    if "num_train_epochs" in values["train"] and "max_steps" not in values["train"]:
        del train["max_steps"]
    rest = {name: _default(each) for name, each in own.items() if name not in train}
    meanings = {**TRAIN_LM, **{f"train.{name}": _sentence(each.metadata["help"]) for name, each in own.items()}}
    derived |= {f"train.{name}" for name in rest}
    return document({**values, "model": model, "train": {**train, **rest}}, meanings, derived)


def document(values: Mapping[str, Any], meanings: Mapping[str, str], derived: set[str]) -> str:
    """Nested settings as YAML with comments. Those in `derived` are comments: they follow from others unless set."""
    lines = []
    for key, value in values.items():
        if not isinstance(value, Mapping):
            lines.append(_line(key, value, meanings.get(key, "")))
            continue
        lines.append(f"{key}:" if any(f"{key}.{name}" not in derived for name in value) else f"{key}: {{}}")
        for name, each in value.items():
            path = f"{key}.{name}"
            line = _line(name, each, meanings.get(path, ""))
            lines.append(f"  # {line}" if path in derived else f"  {line}")
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, meaning: str) -> str:
    text = yaml.safe_dump(_plain(value), default_flow_style=True, sort_keys=False, width=10**6)
    line = f"{key}: {text.removesuffix(chr(10)).removesuffix('...').strip()}"
    return f"{line:<{_COLUMN}} # {meaning}" if meaning else line


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    """A value that YAML can hold: enums and the like as text."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    known = value is None or type(value) in (bool, int, float, str)
    return value if known else str(getattr(value, "value", value))


def _sentence(text: str) -> str:
    """The first sentence, on one line."""
    first = " ".join(text.split()).split(". ")[0].rstrip(".")
    return textwrap.shorten(first, 120, placeholder=" ...")
