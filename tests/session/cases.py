"""A language model's folder that takes a moment to make."""

import torch
from transformers import ByT5Tokenizer

from varla.models import VarlaConfig, VarlaForCausalLM


def tiny(mechanisms="vla", seed=0, **changes):
    """A model of bytes, with fresh weights."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 259,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "initializer_range": 0.3,
        "mechanisms": mechanisms,
        "eos_token_id": 1,
    }
    return VarlaForCausalLM(VarlaConfig(**{**sizes, **changes})).eval()


def save(folder, model, tokenizer=None):
    """The model's folder, with a tokenizer of bytes unless another is given."""
    model.save_pretrained(folder)
    (tokenizer or ByT5Tokenizer(extra_ids=0)).save_pretrained(folder)
    return folder
