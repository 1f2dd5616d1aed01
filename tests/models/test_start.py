"""How a fresh model begins: a token's embedding is as large as what all layers add to it."""

import math

import pytest
import torch

from tests.models.cases import config, model, tokens
from varla.layers import build
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


OWN = ("decay.bias", "decay.log_rate", "strength.bias")  # what gates hold beside their projections
NEW = ("u.weight", "strength.bias", "strength.projection.weight")  # what gated-vla has and gated-deltanet has not


def test_gates_begin_as_in_the_lab():
    wanted = build("gated-vla", d_model=24, n_heads=3, bias=False)
    for layer in model("gated-vla", initializer_range=0.05).model.layers:
        for name in OWN:
            assert torch.equal(layer.mixer.get_parameter(name), wanted.get_parameter(name))
        for gate in (layer.mixer.decay, layer.mixer.strength):
            assert abs(float(gate.projection.weight.detach().std()) - 0.05) < 2e-2
        assert torch.equal(layer.mixer.u.weight, layer.mixer.k.weight)


def test_gates_made_on_the_meta_device_begin_alike():
    with torch.device("meta"):
        net = VarlaForCausalLM(config(mechanisms="gated-vla"))
    for parameter in net.to_empty(device="cpu").parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    net.init_weights()
    wanted = model("gated-vla")
    for name, parameter in net.named_parameters():
        assert parameter.isfinite().all(), name
        if name.endswith(OWN):
            assert torch.equal(parameter, wanted.get_parameter(name)), name


def test_gates_that_a_checkpoint_does_not_hold_begin_alike_and_others_are_kept(tmp_path):
    """A gated-vla model from the weights of a gated-deltanet one, loaded by way of the meta device."""
    before = model("gated-deltanet")
    for parameter in before.parameters():
        torch.nn.init.normal_(parameter)
    before.save_pretrained(tmp_path)
    chosen = config(mechanisms="gated-vla", mechanism_options={"gated-vla": {"strength_init": 0.5}})
    net, info = VarlaForCausalLM.from_pretrained(tmp_path, config=chosen, output_loading_info=True)
    missing = {name for i in range(3) for name in (f"model.layers.{i}.mixer.{own}" for own in NEW)}
    assert set(info["missing_keys"]) == missing
    wanted = model("gated-vla", mechanism_options={"gated-vla": {"strength_init": 0.5}})
    for name, parameter in net.named_parameters():
        assert parameter.isfinite().all(), name
        if name not in missing:
            assert torch.equal(parameter, before.get_parameter(name)), name
        elif name.endswith(OWN):
            assert torch.equal(parameter, wanted.get_parameter(name)), name
        elif name.endswith("u.weight"):
            assert torch.equal(parameter, before.get_parameter(name.replace("u.weight", "k.weight"))), name


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
