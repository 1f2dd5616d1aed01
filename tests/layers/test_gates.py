"""Gated DeltaNet and Gated VLA: their recurrence, how their gates begin, in which precision they are computed."""

import math

import pytest
import torch
from torch.nn.functional import normalize, silu, softplus

from tests.ops.cases import error, randn
from varla.backbone import Backbone, backbone_config
from varla.layers import build
from varla.layers.gates import LONGEST, SHORTEST, LogDecay, PenaltyStrength, inverse_softplus, undecayed

GATED = ("gated-deltanet", "gated-vla")


def make(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return build(name, d_model=24, n_heads=3, **options).to(dtype)


def loop(layer, x, lambda0=0.1):
    """The recurrence as its docstring has it, token by token and head by head, from the layer's own projections."""
    x = x if layer.conv is None else layer.conv(x)[0]
    q, k, v = (layer.heads(project(x)) for project in (layer.q, layer.k, layer.v))
    q, k = (normalize(silu(each), dim=-1) for each in (q, k))
    beta, log_decay = layer.beta(x), layer.decay(x)
    B, T, H, D = q.shape
    S = [[x.new_zeros(layer.value_dim, D) for _ in range(H)] for _ in range(B)]
    penalty = [[lambda0 * torch.eye(D, dtype=x.dtype) for _ in range(H)] for _ in range(B)]
    o = torch.empty_like(v)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                a = k[b, t, h]
                if layer.name == "gated-vla":
                    u = normalize(layer.heads(layer.u(x))[b, t, h], dim=-1)
                    penalty[b][h] = penalty[b][h] + layer.strength(x)[b, t, h] * torch.outer(u, u)
                    a = normalize(torch.linalg.solve(penalty[b][h], k[b, t, h]), dim=-1)
                S[b][h] = log_decay[b, t, h].exp() * S[b][h]
                wrong = v[b, t, h] - S[b][h] @ k[b, t, h]
                S[b][h] = S[b][h] + beta[b, t, h] * torch.outer(wrong, a)
                o[b, t, h] = D**-0.5 * S[b][h] @ q[b, t, h]
    return layer.out(o.flatten(2))


@pytest.mark.parametrize("options", [{}, {"conv": 4, "value_dim": 5, "negative_eigenvalues": True, "bias": False}])
@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_they_compute_their_recurrence(name, options):
    layer, x = make(name, **options), randn(2, 11, 24, seed=1)
    assert error(layer(x)[0], loop(layer, x)) <= 1e-12


@torch.no_grad()
def test_without_strength_or_with_A_fixed_gated_vla_is_gated_deltanet():
    plain, x = make("gated-deltanet", conv=4), randn(2, 45, 24, seed=1)
    wanted = plain(x)[0]
    none, fixed = make("gated-vla", conv=4), make("gated-vla", conv=4, update_penalty=False)
    for layer in (none, fixed):
        layer.load_state_dict(plain.state_dict(), strict=False)
    assert error(none(x)[0], wanted) > 1e-3
    none.strength.bias.fill_(-math.inf)
    assert error(none(x)[0], wanted) <= 1e-12
    assert error(fixed(x)[0], wanted) <= 1e-12


@torch.no_grad()
def test_without_decay_gated_deltanet_is_deltanet():
    layer, other, x = make("gated-deltanet"), make("deltanet"), randn(2, 45, 24, seed=1)
    other.load_state_dict(layer.state_dict(), strict=False)
    assert error(layer(x)[0], other(x)[0]) > 1e-3
    layer.decay.log_rate.fill_(-math.inf)
    assert error(layer(x)[0], other(x)[0]) <= 1e-12


@pytest.mark.parametrize("heads", [1, 2, 4, 16])
@torch.no_grad()
def test_time_scales_begin_between_tens_and_thousands_of_tokens(heads):
    log_decay = LogDecay(8, heads)(torch.zeros(1, 1, 8))[0, 0]
    tokens = -1 / log_decay.double()
    assert tokens.min() >= SHORTEST
    assert tokens.max() <= LONGEST
    assert abs(tokens.log().mean() - math.log(SHORTEST * LONGEST) / 2) <= 1e-4
    steps = tokens.log().diff()
    assert error(steps, steps.new_full(steps.shape, math.log(LONGEST / SHORTEST) / heads)) <= 1e-4


@pytest.mark.parametrize("start", [1e-6, 0.05, 1.0, 50.0])
@torch.no_grad()
def test_strengths_begin_in_proportion_to_the_time_scales(start):
    nothing = torch.zeros(1, 1, 8)
    tokens = -1 / LogDecay(8, 3)(nothing)
    wanted = start * tokens / LONGEST
    assert (PenaltyStrength(8, 3, start=start, most=100.0)(nothing) / wanted - 1).abs().max() <= 1e-4
    y = torch.tensor([start], dtype=torch.float64)
    assert (softplus(inverse_softplus(y)) / start - 1).abs().max() <= 1e-9


def test_strengths_stay_in_the_range_that_the_operator_allows():
    """A run that diverges, then, is said to diverge: it does not end with an error about an argument."""
    layer, x = make("gated-vla", torch.float32), 1e6 * randn(2, 9, 24, seed=1, dtype=torch.float32)
    assert layer.strength(x).max() == 100
    y, _ = layer(x)
    y.square().mean().backward()
    assert y.isfinite().all()
    for dtype in (torch.bfloat16, torch.float16):
        layer.to(dtype)((x / 1e3).to(dtype))


@pytest.mark.parametrize("protocol", ["paper", "tuned"])
def test_the_lab_begins_gates_alike_and_draws_only_their_projections(protocol):
    first, second = (Backbone(backbone_config(protocol, "gated-vla"), seed=seed) for seed in (1, 2))
    a, b, fresh = first.blocks[0].mixer, second.blocks[1].mixer, build("gated-vla", d_model=128, n_heads=4)
    for name in ("decay.bias", "decay.log_rate", "strength.bias"):
        assert torch.equal(a.get_parameter(name), fresh.get_parameter(name))
        assert torch.equal(a.get_parameter(name), b.get_parameter(name))
    for gate in ("decay", "strength"):
        assert not torch.equal(getattr(a, gate).projection.weight, getattr(b, gate).projection.weight)
    if protocol == "paper":
        assert (a.decay.projection.weight.std() - 0.02).abs() < 3e-3


def test_weight_decay_leaves_biases_and_rates_of_gates_alone():
    names = {"decay.bias", "decay.log_rate"}
    assert undecayed(build("gated-deltanet", d_model=8, n_heads=2)) == names
    net = Backbone(backbone_config("tuned", "gated-vla", n_layers=1))
    assert undecayed(net) == {f"blocks.0.mixer.{name}" for name in (*names, "strength.bias")}
    assert undecayed(Backbone(backbone_config("tuned", "deltanet"))) == set()


@pytest.mark.parametrize("name", GATED)
def test_under_autocast_decays_and_strengths_are_computed_in_float32(name):
    """Rounded to bfloat16, a bias of -10 would be off by 3%, and so would the decay."""
    layer, x = make(name, torch.float32, conv=4), randn(2, 9, 24, seed=1, dtype=torch.float32)
    exact = {gate: getattr(layer, gate)(x) for gate in ("decay", "strength") if hasattr(layer, gate)}
    with torch.autocast("cpu", torch.bfloat16):
        found = {gate: getattr(layer, gate)(x) for gate in exact}
        y, state = layer(x)
    for gate, value in found.items():
        assert value.dtype == torch.float32
        assert (value / exact[gate] - 1).abs().max() <= 1e-2
    assert y.dtype == torch.bfloat16
    assert state.memory.S.dtype == torch.float32
    assert error(y.float(), layer(x)[0]) <= 0.05


@pytest.mark.parametrize("name", GATED)
def test_write_strengths_are_up_to_one_or_two(name):
    x = 1e3 * randn(2, 9, 24, seed=1)
    for negative in (False, True):
        beta = make(name, negative_eigenvalues=negative).beta(x)
        assert beta.min() >= 0
        assert beta.max() == 2 if negative else beta.max() == 1


@pytest.mark.parametrize("name", GATED)
def test_gates_can_be_watched(name):
    layer, x = make(name, conv=4), randn(2, 9, 24, seed=1)
    readings, convolved = layer.watch(x), layer.conv(x)[0]
    assert error(readings["beta"], layer.beta(convolved)) <= 1e-12
    assert error(readings["decay"], layer.decay(convolved).exp()) <= 1e-12
    if name == "gated-vla":
        assert error(readings["strength"], layer.strength(convolved)) <= 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength_init": 0.0}, "strength_init must be greater than 0"),
        ({"strength_init": 200.0}, r"strength_init must be at most 1000 \* lambda0 = 100 .* got 200.0"),
        ({"u_init": "k"}, "u_init must be one of 'keys', 'drawn', got 'k'"),
        ({"lambda0": -1.0}, "lambda0 must be greater than 0"),
        ({"penalty_scale": 1.0}, "unknown option of 'gated-vla' 'penalty_scale'"),
        ({"negative_eigenvalues": 1}, "negative_eigenvalues must be True or False"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make("gated-vla", **options)


def test_penalty_directions_begin_as_the_keys():
    """In a layer by itself, and in a network, where each module draws its own numbers."""
    config = backbone_config("tuned", "gated-vla", n_layers=2, vocab_size=8)
    layers = [make("gated-vla"), *(block.mixer for block in Backbone(config, seed=1).blocks)]
    for layer in layers:
        assert torch.equal(layer.u.weight, layer.k.weight)
        assert torch.equal(layer.u.bias, layer.k.bias)
    assert not torch.equal(layers[1].k.weight, layers[2].k.weight)
    drawn = make("gated-vla", u_init="drawn")
    assert not torch.equal(drawn.u.weight, drawn.k.weight)


@torch.no_grad()
def test_gated_vla_forgets_with_its_decay_at_the_beat():
    plain, x = make("gated-vla", conv=4, forget=False), randn(2, 23, 24, seed=1)
    layer = make("gated-vla", conv=4, beat=8)
    layer.load_state_dict(plain.state_dict())
    wanted = layer(x)[0]
    assert error(wanted[:, :8], plain(x)[0][:, :8]) <= 1e-12
    assert error(wanted[:, 8:], plain(x)[0][:, 8:]) > 1e-4
    state, found = None, []
    for piece in (x[:, :5], x[:, 5:17], *x[:, 17:].split(1, 1)):
        y, state = layer(piece, state)
        found.append(y)
    assert error(torch.cat(found, 1), wanted) <= 1e-12
    assert type(state.memory).__name__ == "ForgettingState"
    assert "forget" not in layer.watch(x)


def test_forgetting_has_its_state_and_refuses_what_it_cannot_do():
    H = 3
    assert make("gated-vla").state_size(100) == make("gated-vla", forget=False).state_size(100) + 4 * H
    for options in ({"refresh_every": 20}, {"update_penalty": False}):
        assert make("gated-vla", **options).settings.forget_at == "token"
    with pytest.raises(ValueError, match="forget and refresh both keep A from shrinking"):
        make("gated-vla", forget=True, refresh_every=20)
    with pytest.raises(ValueError, match="beat must be at least 1, got 0"):
        make("gated-vla", forget=True, beat=0)
    with pytest.raises(TypeError, match="forget must be"):
        make("gated-vla", forget="decay")
