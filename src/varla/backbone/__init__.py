"""The decoder that the mechanisms are compared in by the lab, and its presets."""

from varla.backbone.model import Backbone, BackboneConfig, ModelState
from varla.backbone.presets import PRESETS, backbone_config

__all__ = ["PRESETS", "Backbone", "BackboneConfig", "ModelState", "backbone_config"]
