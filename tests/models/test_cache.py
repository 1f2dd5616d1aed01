"""VarlaCache: constant size, rows that come and go, and what it refuses."""

import copy

import pytest
import torch
from transformers import DynamicCache

from tests.models.cases import KINDS, config, decode, model, tokens
from tests.ops.cases import error
from varla.models import VarlaCache


@torch.no_grad()
def test_size_is_constant_but_for_softmax():
    for kind in KINDS:
        net = model(kind)
        sizes = [net(tokens(2, T)).past_key_values.nbytes for T in (4, 40)]
        assert (sizes[0] == sizes[1]) == (kind not in ("softmax", "hybrid")), kind
    assert VarlaCache(config()).nbytes == 0


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rows_can_be_chosen_repeated_and_copied(kind):
    net, ids, more = model(kind), tokens(3, 20), tokens(4, 5, seed=2)
    cache = net(ids).past_key_values
    rows = torch.tensor([2, 0, 0, 1])
    wanted = net(torch.cat((ids[rows], more), 1)).logits[:, 20:]
    for change in ("reorder_cache", "batch_select_indices"):
        chosen = cache.clone()
        getattr(chosen, change)(rows)
        assert chosen.batch_size == 4
        assert error(decode(net, more, chosen), wanted) <= 1e-4
    repeated = copy.deepcopy(cache)
    repeated.batch_repeat_interleave(2)
    wanted = net(torch.cat((ids.repeat_interleave(2, 0), more[:3].repeat(2, 1)), 1)).logits[:, 20:]
    assert error(decode(net, more[:3].repeat(2, 1), repeated), wanted) <= 1e-4
    assert (cache.batch_size, cache.get_seq_length()) == (3, 20)
    assert not {x.data_ptr() for x in cache.state.layers[0].memory.tensors().values()} & {
        x.data_ptr() for x in cache.clone().state.layers[0].memory.tensors().values()
    }


@torch.no_grad()
def test_reset_begins_anew():
    net, ids = model("hybrid"), tokens(2, 20)
    cache = net(ids).past_key_values
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size, cache.is_initialized) == (0, -1, False)
    assert torch.equal(net(ids[:1], past_key_values=cache).logits, net(ids[:1]).logits)


def test_what_transformers_asks():
    net = model("hybrid")
    cache = VarlaCache(net.config)
    assert len(cache) == 3
    assert cache
    assert (cache.batch_size, cache.get_seq_length(), cache.get_max_length()) == (-1, 0, -1)
    net(tokens(2, 7), past_key_values=cache)
    assert cache.get_mask_sizes(3, 0) == (10, 0)
    assert not cache.is_compileable
    assert not cache.is_croppable
    assert cache.is_linear == [True, False, True]
    assert cache.is_sliding == [False] * 3
    assert cache.has_previous_state()
    assert repr(cache) == f"VarlaCache(3 layers, 2 rows, 7 tokens, {cache.nbytes} bytes)"


def test_gradients_flow_through_it_and_can_be_cut():
    net, ids = model("hybrid"), tokens(1, 8)
    cache = net(ids).past_key_values
    assert cache.state.layers[0].memory.S.requires_grad
    assert not cache.detach().state.layers[0].memory.S.requires_grad
    weight = net.model.layers[0].mixer.v.weight
    loss = net(ids, past_key_values=cache.clone()).logits.square().mean()
    through = torch.autograd.grad(loss, [weight], retain_graph=True)[0]
    cut = torch.autograd.grad(net(ids, past_key_values=cache.detach()).logits.square().mean(), [weight])[0]
    assert error(through, cut) > 1e-3


def test_a_wrong_cache_is_refused_and_left_as_it_was():
    net, ids = model("vla"), tokens(2, 6)
    cache = net(ids).past_key_values
    with pytest.raises(ValueError, match="past_key_values holds 2 rows, the call has 1; resize it by"):
        net(ids[:1], past_key_values=cache)
    with pytest.raises(ValueError, match="past_key_values is of another model: its layer 1 is vla"):
        model("hybrid")(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="of another model: it has 3 layers, this model 2"):
        model("vla", num_hidden_layers=2)(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"of another model: its layer 0 is vla: .*head_dim=8"):
        model("vla", head_dim=6)(ids, past_key_values=cache)
    with pytest.raises(TypeError, match="past_key_values must be a VarlaCache, as VarlaCache"):
        net(ids, past_key_values=DynamicCache())
    with pytest.raises(TypeError, match=r"past_key_values must be a VarlaCache.*got tuple"):
        net(ids, past_key_values=((ids, ids),))
    with pytest.raises(ValueError, match="cannot be shortened"):
        cache.crop(3)
    with pytest.raises(ValueError, match="cannot be shortened"):
        cache.activate_past_recording()
    with pytest.raises(TypeError, match="updated by models of the family alone"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)
    with pytest.raises(TypeError, match="config must be a VarlaConfig, got NoneType"):
        VarlaCache(None)
    assert cache.get_seq_length() == 6
