"""What a forward returns beside logits: attention weights, hidden states, a cache that lists its layers."""

import pytest
import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from tests.models.cases import KINDS, SIDES, decode, model, padded, tokens
from tests.ops.cases import error
from varla.models import VarlaCache


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_softmax_layers_return_their_weights_and_change_nothing(kind):
    net, ids = model(kind), tokens(2, 9)
    plain, found = net(ids), net(ids, output_attentions=True)
    assert error(found.logits, plain.logits) <= 1e-5
    assert plain.attentions is None
    assert len(found.attentions) == net.config.layer_mechanisms.count("softmax")
    for weights in found.attentions:
        assert weights.shape == (2, 3, 9, 9)
        assert error(weights.sum(-1), torch.ones(2, 3, 9)) <= 1e-5
        assert weights.triu(1).eq(0).all()


@torch.no_grad()
def test_weights_give_the_layers_output():
    net, ids = model("softmax", torch.float64, num_hidden_layers=1, short_conv=None), tokens(2, 9)
    mixer, seen = net.model.layers[0].mixer, []
    mixer.norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    mixer.v.register_forward_hook(lambda module, inputs, output: seen.append(output))
    (weights,) = net(ids, output_attentions=True).attentions
    v, o = seen
    assert error((weights @ v.view(2, 9, 3, 8).transpose(1, 2)).transpose(1, 2).flatten(2), o) <= 1e-12


@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_weights_of_padded_rows_are_those_of_the_row_alone(side):
    net = model("hybrid", torch.float64)
    ids, mask = padded([9, 1, 5], side)
    (weights,) = net(ids, mask, output_attentions=True).attentions
    assert weights.shape == (3, 3, 9, 9)
    for i, keep in enumerate(mask.bool()):
        (apart,) = net(ids[i][keep][None], output_attentions=True).attentions
        assert error(weights[i][:, keep][:, :, keep], apart[0]) <= 1e-10
        assert weights[i][:, ~keep].eq(0).all()
        assert weights[i][:, :, ~keep].eq(0).all()


@torch.no_grad()
def test_weights_of_packed_sequences_stay_within_them():
    net, ids = model("hybrid", torch.float64), tokens(1, 12)
    (weights,) = net(ids, cu_seqlens=torch.tensor([0, 5, 5, 12]), output_attentions=True).attentions
    for start, end in ((0, 5), (5, 12)):
        (apart,) = net(ids[:, start:end], output_attentions=True).attentions
        assert error(weights[..., start:end, start:end], apart) <= 1e-10
    assert weights[..., 5:, :5].eq(0).all()
    assert weights[..., :5, 5:].eq(0).all()


@torch.no_grad()
def test_weights_after_a_cache():
    net, ids = model("hybrid", torch.float64), tokens(2, 12)
    (whole,) = net(ids, output_attentions=True).attentions
    cache = net(ids[:, :8]).past_key_values
    (weights,) = net(ids[:, 8:], past_key_values=cache, output_attentions=True).attentions
    assert error(weights, whole[:, :, 8:]) <= 1e-10
    first, mask = padded([8, 3], "right")
    cache = net(first, mask).past_key_values
    more = torch.tensor([[1, 1, 1], [1, 1, 0]])
    (weights,) = net(ids[:, :3], more, past_key_values=cache.clone(), output_attentions=True).attentions
    assert weights.shape == (2, 3, 3, 11)
    (apart,) = net(torch.cat((first[1:, :3], ids[1:, :2]), 1), output_attentions=True).attentions
    assert error(weights[1, :, :2, [0, 1, 2, 8, 9]], apart[0, :, 3:]) <= 1e-10
    (weights,) = net(ids[:, :1], past_key_values=cache, output_attentions=True).attentions
    assert weights.shape == (2, 3, 1, 9)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_hidden_states_and_weights(side, checkpointing):
    net = model("hybrid").train()
    if checkpointing:
        net.gradient_checkpointing_enable({"use_reentrant": False})
    ids, mask = (tokens(2, 9), None) if side is None else padded([9, 5], side)
    found = net(ids, mask, labels=ids, output_hidden_states=True, output_attentions=True)
    for x in (*found.hidden_states, *found.attentions):
        x.retain_grad()
    found.loss.backward()
    for x in (*found.hidden_states, *found.attentions):
        assert x.grad.abs().max() > 0
    for weight in net.parameters():
        assert weight.grad.isfinite().all()


def test_settings_ask_for_outputs_too():
    net, ids = (
        model("hybrid", output_hidden_states=True, attn_implementation="eager", output_attentions=True),
        tokens(2, 9),
    )
    found = net(ids)
    assert (len(found.hidden_states), len(found.attentions)) == (4, 1)
    assert net(ids, output_attentions=False, output_hidden_states=False).keys() == {"logits", "past_key_values"}
    logits, _, hidden, attentions = net(ids, return_dict=False)
    assert (logits.shape, len(hidden), len(attentions)) == ((2, 9, 50), 4, 1)


def test_generation_returns_them_too():
    net, ids = model("hybrid"), tokens(2, 9)
    asked = {"output_attentions": True, "output_hidden_states": True, "output_scores": True, "output_logits": True}
    found = net.generate(ids, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, **asked)
    assert [step[0].shape for step in found.attentions] == [(2, 3, 9, 9), *((2, 3, 1, n) for n in (10, 11, 12))]
    assert [len(step) for step in found.hidden_states] == [4] * 4
    assert error(found.scores[0], net(ids).logits[:, -1]) <= 1e-5
    assert found.past_key_values.get_seq_length() == 12


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_cache_lists_its_layers(kind):
    net, ids = model(kind), tokens(2, 9)
    empty = VarlaCache(net.config)
    assert len(empty.layers) == len(empty) == 3
    cache = net(ids).past_key_values
    other = VarlaCache(net.config)
    decode(net, ids, other)
    for i, (name, layer, again) in enumerate(zip(net.config.layer_mechanisms, cache.layers, other.layers, strict=True)):
        state = cache.state.layers[i]
        assert type(layer) is type(again) is type(empty.layers[i])
        if name == "softmax":
            assert type(layer) is DynamicLayer
            assert torch.equal(layer.keys, state.memory.k.transpose(1, 2))
            assert torch.equal(layer.values, state.memory.v.transpose(1, 2))
            assert error(layer.keys, again.keys) <= 1e-4
            continue
        assert type(layer) is LinearAttentionLayer
        assert torch.equal(layer.recurrent_states[0], state.memory.S)
        assert torch.equal(layer.conv_states[0], state.conv.mT)
        for mine, theirs in zip(layer.recurrent_states.values(), again.recurrent_states.values(), strict=True):
            assert error(mine, theirs) <= 1e-4
    with pytest.raises(TypeError, match="updated by models of the family alone"):
        cache.update_recurrent_state(ids, 0)
