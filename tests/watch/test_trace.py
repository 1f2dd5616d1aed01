"""A trace is what the model itself does: the same logits, and writes that lead to the model's own states."""

import numpy as np
import pytest
import torch

from tests.layers.replay import states
from tests.session.cases import tiny
from varla.backbone import Backbone, BackboneConfig
from varla.watch import trace

TOKENS = torch.tensor([5, 9, 5, 2, 7, 7, 1, 30, 4])


@pytest.mark.parametrize("mechanism", ["linear", "gated-vla"])
def test_a_backbone(mechanism):
    model = Backbone(BackboneConfig(mechanism, d_model=16, n_heads=2, ffn=16, layer={"conv": 3})).eval()
    layers, logits = trace(model, TOKENS)
    wanted, state = model(TOKENS[None])
    assert torch.equal(logits, wanted[0])
    assert [(layer.index, layer.mechanism) for layer in layers] == [(0, mechanism), (1, mechanism)]
    for layer, own in zip(layers, state.layers, strict=True):
        S, _ = states(layer.writes, 1)[-1]
        assert np.allclose(S, own.memory.tensors()["S"][0, 1].detach(), atol=1e-4)


def test_a_language_model_without_its_softmax_layers():
    model = tiny(["vla", "softmax", "mesa"], num_hidden_layers=3)
    layers, logits = trace(model, TOKENS)
    found = model(TOKENS[None], use_cache=True)
    assert torch.equal(logits, found.logits[0])
    assert [(layer.index, layer.mechanism) for layer in layers] == [(0, "vla"), (2, "mesa")]
    for layer in layers:
        own = found.past_key_values.state.layers[layer.index].memory.tensors()
        S, A = states(layer.writes)[-1]
        assert np.allclose(S, own["S"][0, 0].detach(), atol=1e-4)
        assert np.allclose(A, own["A"][0, 0].detach(), rtol=1e-4, atol=1e-4)


def test_nothing_to_watch_is_refused():
    with pytest.raises(ValueError, match=r"my/model keeps no memory matrix to watch: its layers are softmax"):
        trace(tiny("softmax"), TOKENS, "my/model")


def test_no_hook_is_left_behind():
    model = tiny("linear")
    trace(model, TOKENS)
    assert not any(module._forward_pre_hooks for module in model.modules())
