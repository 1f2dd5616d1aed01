"""The learning rate, and an optimizer that a CUDA graph can hold."""

import math

import pytest
import torch

from varla.backbone import Backbone, backbone_config
from varla.training.optimizer import adamw, cosine, parameter_groups, set_rate


def test_the_rate_warms_up_linearly_and_falls_as_a_cosine():
    rate = cosine(2.0, steps=100, warmup=10)
    assert [rate(step) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    assert rate(55) == pytest.approx(1.0)
    assert rate(99) == pytest.approx(1 + math.cos(math.pi * 89 / 90))
    assert cosine(2.0, steps=10, warmup=0)(0) == 2.0


def test_the_rate_can_end_above_zero():
    rates = [cosine(1.0, steps=100, warmup=10, floor=0.1)(step) for step in range(100)]
    assert max(rates) == rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_the_optimizer_can_be_captured():
    found = adamw(torch.nn.Linear(2, 2).parameters(), capture_on=torch.device("cpu"))
    (group,) = found.param_groups
    assert group["capturable"]  # else PyTorch refuses to capture its step, fused or not
    rate = group["lr"]
    set_rate(found, 0.5)
    assert group["lr"] is rate  # a graph reads it at its address
    assert float(rate) == 0.5


def test_groups_keep_their_own_decay_and_share_the_rate():
    layer = torch.nn.Linear(2, 2)
    found = adamw([{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias]}], weight_decay=0.0)
    set_rate(found, 0.5)
    assert [(group["weight_decay"], group["lr"]) for group in found.param_groups] == [(0.1, 0.5), (0.0, 0.5)]


def test_biases_and_rates_of_gates_do_not_decay():
    net = Backbone(backbone_config("tuned", "gated-vla", n_layers=1))
    decays = {
        parameter: group["weight_decay"]
        for group in adamw(parameter_groups(net), weight_decay=0.1).param_groups
        for parameter in group["params"]
    }
    assert len(decays) == len(list(net.parameters()))
    kept = {name for name, parameter in net.named_parameters() if decays[parameter] == 0}
    assert kept == {f"blocks.0.mixer.{name}" for name in ("decay.bias", "decay.log_rate", "strength.bias")}
    (group,) = adamw(parameter_groups(Backbone(backbone_config("tuned", "vla")))).param_groups
    assert group["weight_decay"] == 1e-2
