"""The options of a mechanism, read from signatures, and the two names that some settings have."""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

# Layers and lab use the paper's short names, and recorded runs hold them. Transformers reads the long ones in the
# configuration of a model. Settings of the lab and of models accept either.
LONG_NAMES: Mapping[str, str] = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "max_len": "max_position_embeddings",
    "conv": "short_conv",
    "norm_eps": "output_norm_eps",
    "rotary": "rope_theta",
}
SHORT_NAMES: Mapping[str, str] = {long: short for short, long in LONG_NAMES.items()}


def renamed(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Settings with the names of a table, LONG_NAMES or SHORT_NAMES. Giving both names of one is an error."""
    found: dict[str, Any] = {}
    for given, value in settings.items():
        name = names.get(given, given)
        if name in found:
            short = SHORT_NAMES.get(name, name)
            raise ValueError(f"{short} and {LONG_NAMES[short]} are the same setting: give one of them")
        found[name] = value
    return found


def options_of(kind: type[nn.Module]) -> dict[str, Any]:
    """Keyword options and their defaults: the class's own and, where it takes **options, its parents'.

    A class may declare its own as a dataclass, OPTIONS, instead of in its signature; less those in NO_OPTIONS.
    """
    found: dict[str, Any] = {}
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        if "OPTIONS" in vars(cls):
            without = vars(cls).get("NO_OPTIONS", ())
            own = [each for each in fields(vars(cls)["OPTIONS"]) if each.init and each.name not in without]
            found.update({each.name: each.default for each in own})
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        found.update({p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in found})
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found
