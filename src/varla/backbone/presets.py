"""Presets: the paper's protocol and a fair one. Data only."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from varla.arguments import refuse_unknown
from varla.backbone.model import BackboneConfig

# The paper's tables (two layers, d = 128, four heads, feed-forward 256, vocabulary 128, tied head, pre-norm) with what
# its text leaves out: learned positions, all weights N(0, 0.02), and a LayerNorm over the merged heads in the VLA layer
# alone. Without that norm its recall results do not come back.
_PAPER: dict[str, Any] = {
    "backbone": {"positions": "learned", "initialisation": "normal"},
    "layer": {},
    "by mechanism": {"vla": {"output_norm": "layer"}},
}

# The same treatment for all: a short convolution, the same output norm, no positions, PyTorch's initialisation but for
# the embeddings, to which the head is tied.
_TUNED: dict[str, Any] = {
    "backbone": {"positions": "none", "initialisation": "tied"},
    "layer": {"conv": 4, "output_norm": "layer"},
    "by mechanism": {},
}

PRESETS: Mapping[str, Mapping[str, Any]] = {"paper": _PAPER, "tuned": _TUNED}


# What may be changed beside the mechanism and its layer options.
SETTINGS = tuple(field.name for field in fields(BackboneConfig) if field.name not in ("mechanism", "layer"))


def backbone_config(
    preset: str, mechanism: str, *, layer: Mapping[str, Any] | None = None, **changes: Any
) -> BackboneConfig:
    """The preset's backbone for a mechanism, with `layer` options and other fields of BackboneConfig changed on top."""
    refuse_unknown("preset", preset, PRESETS)
    for name in changes:
        refuse_unknown("model setting", name, SETTINGS)
    chosen = PRESETS[preset]
    options = {**chosen["layer"], **chosen["by mechanism"].get(mechanism, {}), **(layer or {})}
    return BackboneConfig(**{"mechanism": mechanism, **chosen["backbone"], **changes, "layer": options})
