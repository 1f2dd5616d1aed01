"""Sequence mixers behind one interface. A new one is one file and one line in `MECHANISMS`."""

from typing import Any

from varla.arguments import refuse_unknown
from varla.layers.base import Layer
from varla.layers.deltanet import DeltaNet
from varla.layers.deltanet_paper import PaperDeltaNet
from varla.layers.gated_deltanet import GatedDeltaNet
from varla.layers.gated_vla import GatedVLA
from varla.layers.linear import LinearAttention
from varla.layers.mesa import Mesa
from varla.layers.options import options_of
from varla.layers.softmax import SoftmaxAttention
from varla.layers.state import LayerState, ModelState
from varla.layers.vla import VLA

MECHANISMS: dict[str, type[Layer]] = {
    layer.name: layer
    for layer in (SoftmaxAttention, LinearAttention, DeltaNet, PaperDeltaNet, GatedDeltaNet, VLA, GatedVLA, Mesa)
}


def build(name: str, *, d_model: int, n_heads: int, **options: Any) -> Layer:
    """Make the mechanism called `name`. Options: its own and the shared ones, see `options_of(MECHANISMS[name])`."""
    refuse_unknown("mechanism", name, MECHANISMS)
    kind = MECHANISMS[name]
    for option in options:
        refuse_unknown(f"option of {name!r}", option, options_of(kind))
    return kind(d_model, n_heads, **options)


__all__ = ["MECHANISMS", "Layer", "LayerState", "ModelState", "build", "options_of"]
