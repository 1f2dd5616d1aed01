"""How a fresh model begins: a token's embedding is as large as what all layers add to it."""

import math

import pytest
import torch

from tests.models.cases import config, model, tokens
from varla.models import VarlaConfig, VarlaForCausalLM, VarlaModel, preset


def spread(x):
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize("tied", [True, False])
def test_weights(tied):
    torch.manual_seed(0)
    net = VarlaForCausalLM(preset("5m", tie_word_embeddings=tied))
    layers = net.config.num_hidden_layers
    for name, weight in net.named_parameters():
        if weight.dim() == 2:
            last = name.endswith(("mixer.out.weight", "down_proj.weight"))
            assert spread(weight) == pytest.approx(0.02 / math.sqrt(2 * layers) if last else 0.02, rel=0.05), name


def test_how_weights_begin():
    net = model(initializer_range=0.05, hidden_size=96, output_gate=True)
    layer = net.model.layers[1]
    for module in (layer.mixer.q, layer.mixer.u, layer.mixer.output_gate, layer.mlp.up_proj, net.model.embed_tokens):
        assert abs(float(module.weight.detach().std()) - 0.05) < 5e-3
        assert getattr(module, "bias", None) is None
    assert float(layer.mixer.conv.conv.weight.detach().abs().max()) <= 0.5  # 1 / sqrt(4 taps)
    assert float(layer.mixer.conv.conv.weight.detach().std()) > 0.2
    for module in (layer.mixer_norm, layer.mlp_norm, layer.mixer.norm, net.model.norm):
        assert module.weight.eq(1).all()
    assert layer.mixer.norm.eps == 1e-20


@torch.no_grad()
def test_a_token_is_not_drowned_by_the_layers():
    torch.manual_seed(0)
    net = VarlaModel(preset("5m", mechanisms="softmax"))
    ids = tokens(2, 200)
    states = net(ids, output_hidden_states=True).hidden_states
    embedded, added = states[0], net.layers[-1](states[-2], None, None)[0] - states[0]
    assert embedded.shape == added.shape
    assert 0.3 * spread(embedded) <= spread(added) <= 1.5 * spread(embedded)


def test_the_multiplier():
    net = model(hidden_size=16, num_attention_heads=2)
    ids = tokens(1, 4)
    embed = net.get_input_embeddings()
    assert torch.equal(embed(ids), 4.0 * embed.weight[ids])
    assert torch.equal(net(inputs_embeds=embed(ids)).logits, net(ids).logits)
    one = VarlaForCausalLM(config(embedding_multiplier=1))
    assert torch.equal(one.get_input_embeddings()(ids), one.get_input_embeddings().weight[ids])


def test_more_tokens_are_multiplied_alike():
    net = model()
    ids = tokens(1, 4)
    before = net.get_input_embeddings()(ids)
    embed = net.resize_token_embeddings(60)
    assert torch.equal(embed(ids), before)
    assert net(torch.tensor([[55, 3]])).logits.shape == (1, 2, 60)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "2"])
def test_a_multiplier_that_is_none(value):
    with pytest.raises((ValueError, TypeError), match="embedding_multiplier"):
        VarlaConfig(embedding_multiplier=value)
