"""Models made of the mechanisms: the backbone that they are compared in, and its presets."""

from varla.models.backbone import Backbone, BackboneConfig, ModelState
from varla.models.presets import PRESETS, backbone_config

__all__ = ["PRESETS", "Backbone", "BackboneConfig", "ModelState", "backbone_config"]
