"""Presets: their names are their sizes."""

import pytest
import torch

from varla.lm.text import load_tokenizer
from varla.models import PRESETS, VarlaForCausalLM, preset

PARAMETERS = {"5m": 5e6, "30m": 30e6, "130m": 130e6, "370m": 370e6, "1.3b": 1.3e9}


def test_all_are_here():
    assert set(PRESETS) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_about_as_many_parameters_as_it_says(name):
    with torch.device("meta"):
        net = VarlaForCausalLM(preset(name))
    assert 0.93 < net.num_parameters() / PARAMETERS[name] < 1.07
    assert net.config.head_dim in (64, 128)  # what the kernels take


@pytest.mark.parametrize("name", ["5m", "30m"])
def test_presets_for_bytes_have_the_byte_tokenizers_vocabulary(name):
    assert preset(name).vocab_size == len(load_tokenizer("bytes"))


def test_changes():
    found = preset("5m", mechanisms="softmax", vocab_size=100)
    assert (found.mechanisms, found.vocab_size, found.hidden_size) == ("softmax", 100, 256)
    with pytest.raises(ValueError, match="unknown preset '5M'; did you mean '5m'"):
        preset("5M")
    with pytest.raises(ValueError, match="unknown setting 'mechanism'; did you mean 'mechanisms'"):
        preset("5m", mechanism="vla")
