"""A little text, and settings of a model that learns it in a second."""

import string
from pathlib import Path
from typing import Any

import torch

from varla.lm.settings import LMSettings, from_dict
from varla.models import VarlaForCausalLM, preset
from varla.runs.settings import override

TINY = {
    "preset": "5m", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16,
    "intermediate_size": 64,
}  # fmt: skip


def write_text(folder: Path, documents: int = 4, words: int = 400) -> str:
    """Files of words in a fixed order, each with its own; returns a pattern that matches them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        letters = string.ascii_lowercase[i:] + string.ascii_lowercase[:i]
        text = " ".join(letters[j % 20 : j % 20 + 5] for j in range(0, 3 * words, 3))
        (folder / f"{i}.txt").write_text(text)
    return str(folder / "*.txt")


def settings(text: str, *changes: str) -> LMSettings:
    values: dict[str, Any] = {
        "model": TINY,
        "data": {"train": [text], "validation": 0.1, "context": 64},
        "train": {
            "max_steps": 6, "logging_steps": 1, "per_device_train_batch_size": 4, "save_steps": 3, "use_cpu": True,
            "report_to": "none", "disable_tqdm": True,
        },
        "evaluate": {"contexts": [32], "tokens": 500},
    }  # fmt: skip
    return from_dict(override(values, changes))


def tiny_model(**changes: Any) -> VarlaForCausalLM:
    """Random weights, 50 tokens."""
    torch.manual_seed(0)
    options = {key: value for key, value in TINY.items() if key != "preset"}
    return VarlaForCausalLM(preset("5m", **{**options, "vocab_size": 50, **changes})).eval()
