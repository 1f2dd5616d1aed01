"""Settings from files and from the command line. A wrong one is refused with the name of its key or file."""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tests.cli.cases import TINY
from tests.fuzz.core import ACCEPTED, Attempt, refused
from tests.fuzz.damage import DEEP, ODD, damaged, damaged_json, other_json
from tests.session.cases import save, tiny
from varla.lm import settings as lm
from varla.runs.settings import load, override
from varla.training import build_model, config

LARGEST = 300  # sizes up to this are built
TEXTS = ("[1, 2", "{a: ", "&a [*a]", "!!python/name:os.system", "2026-01-01", "1_000", "0x1f", "~")
LM = {
    "model": {"preset": "5m", "mechanisms": "vla"},
    "tokenizer": "bytes",
    "data": {"train": ["*.txt"], "validation": 0.01, "context": 64},
    "train": {"max_steps": 10, "learning_rate": 1e-3},
    "evaluate": {"contexts": [512], "tokens": 1000},
    "seed": 1,
}
LAB = {**TINY, "mechanism": "vla", "preset": "tuned", "seed": 1, "layer": {"gain": "unit", "lambda0": 0.1}}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def files(folder: Path) -> Attempt:
    """YAML files, as `varla train` and `varla train-lm` read them."""
    path = folder / "damaged.yaml"

    def attempt(draw: random.Random) -> str:
        base = draw.choice((LAB, LM))
        path.write_bytes(_yaml(base, draw))
        try:
            values = load(path)
        except Exception as error:
            return refused(error, path.name)
        return _use(base, values)

    return attempt


def assignments(folder: Path) -> Attempt:
    """`--set key=value`."""

    def attempt(draw: random.Random) -> str:
        base = draw.choice((LAB, LM))
        key = draw.choice([name for name, _ in _keys(base)])
        if draw.random() < 0.2:
            key = damaged(key.encode(), draw).decode(errors="replace")
        text = _text(draw)
        if draw.random() < 0.2:
            text = damaged(text.encode(errors="surrogatepass"), draw).decode(errors="replace")
        equals = "=" if draw.random() < 0.98 else ""
        try:
            values = override(base, [f"{key}{equals}{text}"])
        except Exception as error:
            return refused(error, "--set")
        return _use(base, values)

    return attempt


def models(folder: Path) -> Attempt:
    """config.json of a saved model."""
    from transformers.utils import logging

    from varla.lm.folder import FolderError, load_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = save(folder / "model", tiny(["vla", "softmax"], mechanism_options={"vla": {"gain": "raw"}}))
    path = model / "config.json"
    data = path.read_bytes()

    def attempt(draw: random.Random) -> str:
        changed = damaged_json(data, draw)
        if _large(changed):
            return ACCEPTED
        path.write_bytes(changed)
        try:
            load_model(model)
        except FolderError as error:
            return refused(error, model.name)
        return ACCEPTED

    return attempt


def _use(base: dict[str, Any], values: dict[str, Any]) -> str:
    """Settings from what was read; of a small model, the model too."""
    given = [part for key, value in _keys(values) for part in (*key.split("."), str(value)) if part]
    names = [*given, *(key for key, _ in _keys(base))]  # a key that is missing is named, too
    try:
        if base is LM:
            lm.check_train(lm.from_dict(values).train)
            return ACCEPTED
        found = config.from_dict(values)
        if not _large(json.dumps(asdict(found), default=str).encode()):
            build_model(found)
    except Exception as error:
        return refused(error, "key", "task", *names)
    return ACCEPTED


def _yaml(base: dict[str, Any], draw: random.Random) -> bytes:
    choice = draw.random()
    if choice < 0.01:
        return BOMB.encode()
    if choice < 0.02:
        return b"a: " + b"[" * DEEP + b"]" * DEEP
    if choice < 0.5:
        return yaml.safe_dump(other_json(base, draw), allow_unicode=True).encode(errors="surrogatepass")
    return damaged(yaml.safe_dump(base).encode(), draw)


def _text(draw: random.Random) -> str:
    found = draw.choice((*ODD, *TEXTS))
    return found if isinstance(found, str) else yaml.safe_dump(found, default_flow_style=True).removesuffix("\n...\n")


def _keys(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all keys."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield f"{path}{key}", value
            yield from _keys(value, f"{path}{key}.")


def _large(text: bytes) -> bool:
    """Whether the settings hold a size that takes long to build, or more memory than there is."""
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return False
    sizes = [value for _, value in _keys(held) if isinstance(value, int | float) and not isinstance(value, bool)]
    return any(LARGEST < size < 2**63 for size in sizes)
