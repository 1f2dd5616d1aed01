"""Sizes of models, as data. The name is about the number of parameters, with the vocabulary given here."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from varla.arguments import refuse_unknown
from varla.layers.options import LONG_NAMES, renamed
from varla.models.configuration import VarlaConfig

_BYTES = 257  # 256 and the end of a text, as in the tokenizer "bytes" of `varla train-lm`
_BPE = 50304  # GPT-2's 50257, rounded up to a multiple of 128


def _sizes(vocabulary: int, width: int, layers: int, heads: int, feed_forward: int, context: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
        "max_position_embeddings": context,
    }


SIZES: Mapping[str, Mapping[str, Any]] = {
    "5m": _sizes(_BYTES, 256, 6, 4, 640, 2048),
    "30m": _sizes(_BYTES, 512, 8, 8, 1536, 2048),
    "130m": _sizes(_BPE, 768, 12, 12, 2048, 2048),
    "370m": _sizes(_BPE, 1024, 24, 16, 2736, 2048),
    "1.3b": _sizes(_BPE, 2048, 22, 16, 5504, 4096),
}
PRESETS = SIZES  # what settings call them: `model.preset=5m`


def preset(name: str, **changes: Any) -> VarlaConfig:
    """The configuration of that size, with settings of VarlaConfig changed: preset("30m", mechanisms="softmax")."""
    refuse_unknown("preset", name, SIZES)
    changes = renamed(changes, LONG_NAMES)
    known = [*(field.name for field in fields(VarlaConfig)), "num_labels"]  # transformers': a property, no field
    for change in changes:
        refuse_unknown("setting", change, known)
    return VarlaConfig(**{**SIZES[name], **changes})
