"""On a GPU: the same logits as on the CPU, whole, token by token, padded and packed; generation; bfloat16."""

import pytest
import torch

from tests.models.cases import KINDS, decode, model, padded, tokens
from tests.ops.cases import error
from varla.ops.backends import MIN_KERNEL_ELEMENTS, worth_a_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("few", [0, MIN_KERNEL_ELEMENTS], ids=["kernels", "auto"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_same_as_on_the_cpu(kind, few, monkeypatch):
    monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", few)
    exact, net = model(kind, torch.float64), model(kind).cuda()
    ids, mask = padded([30, 1, 17], "left")
    for given in ({}, {"attention_mask": mask}):
        wanted = exact(ids, **given)
        found = net(ids.cuda(), **{name: value.cuda() for name, value in given.items()})
        assert error(found.logits.cpu(), wanted.logits) <= 1e-3
        more = tokens(3, 5, seed=2)
        rest = decode(net, more.cuda(), found.past_key_values)
        assert error(rest.cpu(), decode(exact, more, wanted.past_key_values)) <= 1e-3
    packed = {"cu_seqlens": torch.tensor([0, 40, 90])}
    assert error(net(ids.view(1, 90).cuda(), **packed).logits.cpu(), exact(ids.view(1, 90), **packed).logits) <= 1e-3


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", KINDS)
def test_generation(kind, options):
    net = model(kind).cuda()
    ids, mask = (x.cuda() for x in padded([9, 4], "left"))
    found = net.generate(ids, attention_mask=mask, max_new_tokens=10, **options)
    assert torch.equal(found, net.generate(ids, attention_mask=mask, max_new_tokens=10, use_cache=False, **options))


@pytest.mark.parametrize("few", [0, MIN_KERNEL_ELEMENTS], ids=["kernels", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_trains_and_decodes(kind, few, monkeypatch):
    monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", few)
    net, ids = model(kind, torch.bfloat16).cuda().train(), tokens(2, 100).cuda()
    net(ids, labels=ids).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
    net.eval()
    with torch.no_grad():
        cache = net(ids[:, :90]).past_key_values
        assert error(decode(net, ids[:, 90:], cache), net(ids).logits[:, 90:]) <= 0.1


@torch.no_grad()
def test_a_step_does_not_wait_for_the_gpu():
    net, ids = model("vla").cuda(), tokens(2, 9).cuda()
    cache = net(ids).past_key_values
    net(ids[:, :1], past_key_values=cache)  # what is compiled or chosen once is not a step's
    torch.cuda.set_sync_debug_mode("error")  # an error where the host waits
    try:
        found = net(ids[:, 1:2], past_key_values=cache).logits
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = net(torch.cat((ids, ids[:, :2]), 1)).logits[:, -1:]
    assert error(found.cpu(), wanted.cpu()) <= 1e-3


def test_a_compiled_step_has_the_same_gradients(monkeypatch):
    """What the operators and their backwards return is laid out as their fakes say: memory is planned by that."""
    monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", 0)
    net, ids = model("vla", num_hidden_layers=1).cuda().train(), tokens(2, 100).cuda()
    found = []
    for each in (net, torch.compile(net)):
        net.zero_grad()
        each(ids, labels=ids).loss.backward()
        found.append([parameter.grad.clone() for parameter in net.parameters()])
    whole = sum(x.square().sum() for x in found[0]).sqrt()
    assert sum((x - y).square().sum() for x, y in zip(*found, strict=True)).sqrt() <= 1e-3 * whole
