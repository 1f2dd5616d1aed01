"""The Hugging Face family, known to transformers' Auto classes: `VarlaConfig`, `VarlaModel`, and models with heads.

    model = VarlaForCausalLM(preset("5m"))
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=20)

Importing this imports transformers, an extra: hf.
"""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        MODEL_MAPPING_NAMES,
    )
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ImportError(
        'varla.models needs Hugging Face transformers: pip install "varla[hf]", or ".[hf]" in a clone',
        name="transformers",
    ) from None

from varla.models.cache import VarlaCache
from varla.models.classification import VarlaForSequenceClassification
from varla.models.configuration import VarlaConfig
from varla.models.modeling import VarlaForCausalLM, VarlaModel
from varla.models.presets import PRESETS, SIZES, preset

AutoConfig.register(VarlaConfig.model_type, VarlaConfig, exist_ok=True)
AutoModel.register(VarlaConfig, VarlaModel, exist_ok=True)
AutoModelForCausalLM.register(VarlaConfig, VarlaForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(VarlaConfig, VarlaForSequenceClassification, exist_ok=True)
# By name, too: pipelines and other generic code look there for what a model can do.
MODEL_MAPPING_NAMES[VarlaConfig.model_type] = VarlaModel.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[VarlaConfig.model_type] = VarlaForCausalLM.__name__
MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[VarlaConfig.model_type] = VarlaForSequenceClassification.__name__

__all__ = [
    "PRESETS",
    "SIZES",
    "VarlaCache",
    "VarlaConfig",
    "VarlaForCausalLM",
    "VarlaForSequenceClassification",
    "VarlaModel",
    "preset",
]
