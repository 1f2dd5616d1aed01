"""Decoders in plain PyTorch: the block that all models share, and the lab's decoder with its presets."""

from varla.backbone.model import Backbone, BackboneConfig
from varla.backbone.presets import PRESETS, PROTOCOLS, backbone_config
from varla.layers import ModelState

__all__ = ["PRESETS", "PROTOCOLS", "Backbone", "BackboneConfig", "ModelState", "backbone_config"]
