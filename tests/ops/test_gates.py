"""Gated VLA: what its gates are, where they are at their ends, and what it becomes without them."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import logsigmoid, normalize, silu, softplus

import varla
from tests.ops.cases import assert_same, error, randn, vla_inputs, vla_state, with_gradients

B, H, D, DV = 2, 2, 5, 4
GATED = {"feature_map": "silu", "normalize_query": True, "scale": None, "normalizer": False}
FORMS = [{"backend": "reference"}, {"backend": "chunk"}, {"backend": "chunk", "chunk_size": 7}]


def make(T, **given):
    """q, k, v, u and the gates by name. A number in `given` is a gate's value at every token."""
    inputs = dict(zip("qkvu", vla_inputs(T, B, H, D, DV), strict=True))
    gates = {
        "beta": 2 * randn(B, T, H, seed=50).sigmoid(),
        "decay": logsigmoid(3 * randn(B, T, H, seed=51)),
        "strength": softplus(randn(B, T, H, seed=52)),
    }
    for name, value in given.items():
        gates[name] = torch.full_like(gates[name], value)
    return {**inputs, **gates}


def outcome(inputs, state=None, function=varla.vla, **options):
    def call(*tensors, **keywords):
        return function(**dict(zip(inputs, tensors, strict=True)), **keywords)

    found = with_gradients(call, list(inputs.values()), state, **options)
    return {name if not name[2:].isdigit() else f"d {[*inputs][int(name[2:])]}": x for name, x in found.items()}


ENDS = {
    "beta 0": {"beta": 0.0},
    "beta 2": {"beta": 2.0},
    "decay 0": {"decay": 0.0},
    "decay -5": {"decay": -5.0},
    "decay -1000": {"decay": -1000.0},
    "strength 0": {"strength": 0.0},
    "strength 10": {"strength": 10.0},
    "all open": {"beta": 1.0, "decay": 0.0, "strength": 0.0},
}


@pytest.mark.parametrize(
    "options", [GATED, {"refresh_every": None, **GATED}, {}, {"gain": "raw", "lambda0": 2.0}], ids=str
)
@pytest.mark.parametrize("ends", ENDS)
def test_chunks_equal_the_reference_at_the_ends_of_every_gate(ends, options):
    inputs = make(67, **ENDS[ends])
    wanted = outcome(inputs, vla_state(), backend="reference", **options)
    assert all(x.isfinite().all() for x in wanted.values())
    for form in FORMS[1:]:
        assert_same(outcome(inputs, vla_state(), **form, **options), wanted)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("gate", ["beta", "decay", "strength"])
def test_the_gradient_at_the_end_of_a_gate_is_its_one_sided_derivative(gate, form):
    """At strength 0 too, where the length of u, a square root, has none."""
    end = {"beta": 0.0, "decay": 0.0, "strength": 0.0}[gate]
    step = -1e-6 if gate == "decay" else 1e-6
    inputs = make(19, **{gate: end})
    leaf = inputs[gate].clone().requires_grad_()
    weight = randn(B, 19, H, DV, seed=3)
    loss = (varla.vla(**{**inputs, gate: leaf}, **GATED, **form) * weight).sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    for place in ((0, 0, 0), (1, 7, 1), (0, 18, 1)):
        moved = [inputs[gate].clone(), inputs[gate].clone()]
        moved[0][place] += step
        moved[1][place] += 2 * step
        near, far = ((varla.vla(**{**inputs, gate: x}, **GATED, **form) * weight).sum() for x in moved)
        assert float(grad[place]) == pytest.approx(float((4 * near - far - 3 * loss) / (2 * step)), rel=1e-4, abs=1e-6)


def delta(inputs, **options):
    """The (gated) delta rule on the same inputs."""
    own = {name: x for name, x in inputs.items() if name not in ("u", "strength")}
    return varla.delta_rule(**own, feature_map="silu", return_state=True, **options)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_with_strength_0_it_is_gated_deltanet_and_without_decay_deltanet(form):
    inputs = make(67, strength=0.0)
    for kept in ((), ("decay",)):
        given = {name: x for name, x in inputs.items() if name not in kept}
        # A stays a multiple of the identity, and a the key.
        o, state = varla.vla(**given, refresh_every=None, return_state=True, **GATED, **form)
        wanted, after = delta(given, **form)
        assert_same({"o": o, "S": state.S}, {"o": wanted, "S": after.S}, 1e-13)


def test_without_gates_it_is_the_papers():
    inputs = dict(zip("qkvu", vla_inputs(67, B, H, D, DV), strict=True))
    ones = {"beta": torch.ones(B, 67, H).double(), "decay": torch.zeros(B, 67, H).double()}
    ones["strength"] = torch.full((B, 67, H), 1 / D, dtype=torch.float64)  # |u| is 1 / sqrt(D)
    for form in FORMS:
        wanted = outcome(inputs, vla_state(), **form)
        got = outcome({**inputs, **ones}, vla_state(), **form)
        assert_same({name: got[name] for name in wanted}, wanted)


def test_two_operators_make_it():
    inputs = make(67)
    q, k, v, u, beta, decay, strength = inputs.values()
    a = varla.directions(k, u, strength=strength, feature_map="silu")
    o = varla.memory(q, k, v, a, beta=beta, decay=decay, **GATED)
    assert_same({"o": o}, {"o": varla.vla(**inputs, **GATED)})


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("names", ["strength", "strength 0"])
def test_strengths_of_directions(names, form):
    inputs = {name: x for name, x in make(67).items() if name in ("k", "u", "strength")}
    if names == "strength 0":
        inputs["strength"][:, ::2] = 0
    state = varla.DirectionState(vla_state().A, vla_state().t)
    wanted = outcome(inputs, state, varla.directions, backend="reference")
    assert_same(outcome(inputs, state, varla.directions, **form), wanted)


def naive_gated_delta_rule():
    """flash-linear-attention's own reference, from the folder VARLA_PEERS with its unpacked wheels; None without it."""
    file = Path(os.environ.get("VARLA_PEERS", "/nowhere"), "fla/ops/gated_delta_rule/naive.py")
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location("naive_gated_delta_rule", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(os.environ["VARLA_PEERS"])  # it imports einops
        spec.loader.exec_module(module)
    return module.naive_recurrent_gated_delta_rule


@pytest.mark.skipif(naive_gated_delta_rule() is None, reason="flash-linear-attention is not here (VARLA_PEERS)")
def test_an_implementation_that_is_not_ours_agrees():
    inputs = {name: x.float() for name, x in make(150, strength=0.0).items()}
    q, k = (normalize(silu(inputs[name]), dim=-1) for name in "qk")
    wanted, S = naive_gated_delta_rule()(q, k, inputs["v"], inputs["beta"], inputs["decay"], output_final_state=True)
    for backend in ("reference", "chunk"):
        o, state = varla.vla(**inputs, refresh_every=None, return_state=True, backend=backend, **GATED)
        assert error(o, wanted) <= 1e-5
        assert error(state.S, S.mT) <= 1e-5
        o, state = delta(inputs, backend=backend)
        assert error(o, wanted) <= 1e-5
        assert error(state.S, S.mT) <= 1e-5


@pytest.mark.parametrize("log", [-1e-4, -0.1, -5.0, -80.0])
def test_long_sequences_keep_their_digits(log):
    """Decays are only ever multiplied between two tokens of a chunk: no long sum is exponentiated."""
    T, inputs = 4096, {}
    for name, x in make(T).items():
        inputs[name] = x.float()
    inputs["decay"] = log * torch.rand(B, T, H, generator=torch.Generator().manual_seed(1))
    wide = {name: x.double() for name, x in inputs.items()}
    got = outcome(inputs, backend="chunk", **GATED)
    wanted = outcome(wide, backend="chunk", **GATED)
    assert all(x.isfinite().all() for x in got.values())
    assert {name: error(got[name], x) for name, x in wanted.items() if not error(got[name], x) <= 1e-4} == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": torch.full((2, 9, 2), 2.1)}, "beta must be 0 to 2, got values from 2.1 to 2.1"),
        ({"decay": torch.full((2, 9, 2), 0.1)}, "decay must be at most 0, got values from 0.1 to 0.1"),
        ({"strength": torch.full((2, 9, 2), -0.1)}, "strength must be at least 0, got values from -0.1 to -0.1"),
        ({"strength": torch.full((2, 9, 2), 200.0)}, r"strength must be at most 102 in float32 for lambda0 = 0.1"),
        ({"strength": torch.ones(2, 9, 2), "penalty_scale": 1.0}, "strength and penalty_scale both set the length"),
        ({"decay": torch.zeros(2, 9)}, r"decay must have 3 dimensions \[B, T, H\], got \[2, 9\]"),
        ({"strength": torch.ones(2, 9, 3)}, "strength must have shape .* with H = 2 as in q"),
    ],
)  # fmt: skip
def test_wrong_gates_are_named(options, message):
    inputs = [x.float() for x in vla_inputs(9, B, H, D, DV)]
    with pytest.raises(ValueError, match=message):
        varla.vla(*inputs, **options)
    if "penalty_scale" not in options and next(iter(options.values())).dim() == 3:
        token = {name: x[:, 0] for name, x in options.items()}
        with pytest.raises(ValueError, match=message.replace("T, ", "")):
            varla.vla_step(*(x[:, 0] for x in inputs), **token)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_lambda0_is_compared_with_the_strengths_and_not_with_the_length_that_u_has_without(form):
    """With the unit gain only strength / lambda0 matters, also for a lambda0 that 1 / D would be too large for."""
    common = {**GATED, "refresh_every": None, **form}
    wanted = varla.vla(**make(67, strength=0.5), lambda0=0.1, **common)
    weak = {name: x.float() for name, x in make(67, strength=0.5e-5).items()}
    assert error(varla.vla(**weak, lambda0=1e-6, **common), wanted) <= 1e-5
    k, u = weak["k"], weak["u"]
    assert varla.directions(k, u, strength=weak["strength"], lambda0=1e-6, **form).isfinite().all()
    with pytest.raises(ValueError, match=r"lambda0 must be at least 0\.000195 in float32"):
        varla.directions(k, u, lambda0=1e-6, **form)


def test_make_fx_traces_gated_calls_on_real_tensors():
    """It refuses to read values, so those of gates are not checked."""
    q, k, v, u, beta, decay, strength = make(19).values()
    for call in (
        lambda: varla.delta_rule(q, k, v, beta, backend="chunk"),
        lambda: varla.vla(q, k, v, u, beta=beta, decay=decay, strength=strength, backend="chunk"),
    ):
        assert torch.equal(make_fx(call)()(), call())
