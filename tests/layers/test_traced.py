"""torch.compile and torch.export with a length that is not fixed: one graph, right at lengths that were not traced."""

import pytest
import torch

import varla
from tests.ops.cases import error
from varla.layers import MECHANISMS, build

LENGTHS = (5, 70, 2)  # the first is traced
OPTIONS = {"softmax": {"rotary": 100.0}, "vla": {"lambda0": 0.3}}


def operators(T):
    torch.manual_seed(T)
    q, k, v, u = torch.randn(4, 2, T, 2, 8).unbind()
    gate = torch.rand(2, T, 2)
    return {
        "vla": (varla.vla, (q, k, v, u), {"lambda0": 0.3, "eps": 1e-5}),
        "directions": (varla.directions, (k, u), {"lambda0": 0.3}),
        "memory": (varla.memory, (q, k, v, k), {}),
        "linear_attention": (varla.linear_attention, (q, k, v), {"eps": 1e-5}),
        "delta_rule": (varla.delta_rule, (q, k, v, gate), {"scale": 0.5}),
        "gated_delta_rule": (varla.delta_rule, (q, k, v, gate), {"decay": -gate}),
        "gated_vla": (varla.vla, (q, k, v, u), {"beta": gate, "decay": -gate, "strength": gate}),
        "forgetting": (varla.vla, (q, k, v, u), {"strength": gate, "forget": -gate / 20, "refresh_every": None}),
        "settings": (varla.vla, (q, k, v, u), {"refresh_every": 7, "lambda0": 0.3, "chunk_size": 16}),
        "fading": (varla.vla, (q, k, v, u), {"forget": -gate, "refresh_every": None, "forget_at": "beat", "beat": 16}),
        "mesa": (varla.mesa, (q, k, v, gate), {"decay": -gate / 20}),
        "decayed_delta_rule": (varla.decayed_delta_rule, (q, k, v, -gate), {}),
        "decayed_by_channel": (varla.decayed_delta_rule, (q, k, v, -v.exp()), {}),
    }


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", operators(2))
def test_operators_compile_in_one_graph_for_any_length(name):
    compiled = torch.compile(operators(2)[name][0], fullgraph=True, dynamic=True, backend="eager")
    for T in LENGTHS:
        function, inputs, options = operators(T)[name]
        assert error(compiled(*inputs, **options), function(*inputs, **options)) <= 1e-5, T
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", MECHANISMS)
def test_layers_compile_in_one_graph_for_any_length(name):
    options = {"conv": 4, "output_norm": "rms", "norm_eps": 1e-9, "output_gate": True, **OPTIONS.get(name, {})}
    layer = build(name, d_model=16, n_heads=2, **options)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for T in LENGTHS:
        x = torch.randn(2, T, 16)
        found, wanted = (torch.autograd.grad(call(x)[0].square().sum(), layer.k.weight) for call in (compiled, layer))
        assert error(found[0], wanted[0]) <= 1e-4, T
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_exported_layers_take_any_length(name, rows):
    """Traced at 20 tokens, below one chunk: nothing may bind the graph to that."""
    layer = build(name, d_model=16, n_heads=2, conv=4, **OPTIONS.get(name, {})).eval()
    length = torch.export.Dim("T", min=2, max=2**20)
    given = (torch.randn(rows, 20, 16),)
    found = torch.export.export(layer, given, dynamic_shapes={"x": {1: length}}).module()
    for T in (20, 2, 3, 33, 130):
        x = torch.randn(rows, T, 16)
        (o, state), (wanted, after) = found(x), layer(x)
        assert error(o, wanted) <= 1e-5, T
        for got, right in zip(state.tensors().values(), after.tensors().values(), strict=True):
            assert error(got, right) <= 1e-5, T
