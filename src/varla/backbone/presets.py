"""The lab's protocols, the paper's and a fair one, as data."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from varla.arguments import refuse_unknown
from varla.backbone.model import BackboneConfig
from varla.layers.options import SHORT_NAMES, renamed

# The paper's tables (two layers, d = 128, four heads, feed-forward 256, vocabulary 128, tied head, pre-norm), and what
# its text leaves out: learned positions, all weights N(0, 0.02), and a LayerNorm over the merged heads in VLA layers
# only. Without that norm its recall results cannot be reproduced.
_PAPER: dict[str, Any] = {
    "backbone": {"positions": "learned", "initialisation": "normal"},
    "layer": {},
    "by mechanism": {"vla": {"output_norm": "layer"}},
}

# The same for all mechanisms: a short convolution, the same output norm, no positions, PyTorch's initialisation except
# for the embeddings, to which the head is tied.
_TUNED: dict[str, Any] = {
    "backbone": {"positions": "none", "initialisation": "tied"},
    "layer": {"conv": 4, "output_norm": "layer"},
    "by mechanism": {},
}

PROTOCOLS: Mapping[str, Mapping[str, Any]] = {"paper": _PAPER, "tuned": _TUNED}
PRESETS = PROTOCOLS  # what settings call them: `preset: paper`

# Settings that may be changed, besides the mechanism and its layer options.
SETTINGS = tuple(field.name for field in fields(BackboneConfig) if field.name not in ("mechanism", "layer"))


def backbone_config(
    preset: str, mechanism: str, *, layer: Mapping[str, Any] | None = None, **changes: Any
) -> BackboneConfig:
    """The protocol's backbone for a mechanism, with `layer` options and other fields of BackboneConfig changed on top.

    Settings may have transformers' names, too: `hidden_size` is `d_model` (`varla.layers.options.LONG_NAMES`).
    """
    changes, layer = renamed(changes, SHORT_NAMES), renamed(layer or {}, SHORT_NAMES)
    refuse_unknown("preset", preset, PROTOCOLS)
    for name in changes:
        refuse_unknown("model setting", name, SETTINGS)
    chosen = PROTOCOLS[preset]
    options = {**chosen["layer"], **chosen["by mechanism"].get(mechanism, {}), **layer}
    return BackboneConfig(**{"mechanism": mechanism, **chosen["backbone"], **changes, "layer": options})
