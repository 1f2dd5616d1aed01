"""Every mechanism: parallel, in pieces, packed and token by token give the same; options, sizes and readings."""

import pytest
import torch

from tests.ops.cases import error, randn
from varla.layers import MECHANISMS, build, options_of, softmax

NAMES = sorted(MECHANISMS)
VARIANTS = [
    {},
    {"conv": 4},
    {"output_norm": "layer", "bias": False},
    {"output_norm": "rms", "conv": 3, "head_dim": 6, "value_dim": 10},
    {"output_norm": "rms", "norm_eps": 1e-12, "conv": 4, "output_gate": True},
]
OWN = {
    "deltanet-paper": [{"gate": "channel"}],
    "gated-deltanet": [{"negative_eigenvalues": True}],
    "gated-vla": [
        {"update_penalty": False},
        {"gain": "projection", "refresh_every": 7, "refresh": 0.1},
        {"negative_eigenvalues": True, "strength_init": 1.0},
    ],
    "mesa": [{"lambda0": 0.3, "beat": 7}, {"negative_eigenvalues": True, "beat": 50}],
    "softmax": [{"rotary": 1e4}, {"rotary": 100.0, "conv": 4, "value_dim": 5}],
    "vla": [{"update_penalty": False}, {"gain": "projection"}],
}
CASES = [(name, options) for name in NAMES for options in VARIANTS + OWN.get(name, [])]


def make(name, options, dtype=torch.float64):
    torch.manual_seed(0)
    return build(name, d_model=24, n_heads=3, **options).to(dtype)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_token_by_token_equals_parallel(name, options):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        layer, x = make(name, options, dtype), randn(2, 45, 24, seed=1, dtype=dtype)
        wanted, final = layer(x)
        state, outputs = None, []
        for t in range(45):
            y, state = layer(x[:, t : t + 1], state)
            outputs.append(y)
        assert error(torch.cat(outputs, 1), wanted) <= tolerance
        for got, want in zip(state.memory.tensors().values(), final.memory.tensors().values(), strict=True):
            assert error(got, want) <= tolerance


@pytest.mark.parametrize(("name", "options"), CASES)
def test_pieces_equal_the_whole(name, options):
    layer, x = make(name, options), randn(2, 45, 24, seed=1)
    wanted, _ = layer(x)
    state, outputs = None, []
    for piece in x.split([1, 20, 2, 0, 22], 1):
        y, state = layer(piece, state)
        outputs.append(y)
    assert error(torch.cat(outputs, 1), wanted) <= 1e-12


@pytest.mark.parametrize(("name", "options"), CASES)
def test_packed_sequences_behave_as_if_alone_and_go_on_from_their_states(name, options):
    layer = make(name, options)
    lengths = [20, 1, 0, 31, 3]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    x = randn(1, sum(lengths), 24, seed=1)
    y, state = layer(x, cu_seqlens=cu_seqlens)
    again, _ = layer(x, state, cu_seqlens)
    for i, length in enumerate(lengths):
        here = slice(int(cu_seqlens[i]), int(cu_seqlens[i]) + length)
        if length:
            alone, after = layer(x[:, here])
            assert error(y[:, here], alone) <= 1e-12
            assert error(again[:, here], layer(x[:, here], after)[0]) <= 1e-12


@pytest.mark.parametrize(("name", "options"), CASES)
def test_causal(name, options):
    layer, x = make(name, options), randn(2, 45, 24, seed=1)
    changed = x.clone()
    changed[:, 30:] += 1
    a, b = layer(x)[0], layer(changed)[0]
    assert error(b[:, :30], a[:, :30]) <= 1e-12
    assert error(b[:, 30:], a[:, 30:]) > 1e-3


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_parameter_gets_a_finite_gradient(name, options):
    layer = make(name, options, torch.float32)
    layer(randn(2, 45, 24, seed=1, dtype=torch.float32))[0].square().mean().backward()
    unused = set()
    if options.get("update_penalty") is False:
        unused = {"u.weight", "u.bias", "strength.projection.weight", "strength.bias"}
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert (parameter.grad.abs().max() > 0) == (key not in unused), key


@pytest.mark.parametrize(("name", "options"), CASES)
def test_state_size_is_what_the_state_takes(name, options):
    layer = make(name, options, torch.float32)
    for T in (1, 7, 40):
        _, state = layer(randn(1, T, 24, seed=1, dtype=torch.float32))
        assert state.nbytes == layer.state_size(T)
    assert (layer.state_size(10) == layer.state_size(10**6)) == (name != "softmax")


@pytest.mark.parametrize("name", NAMES)
def test_a_state_keeps_nothing_else_alive(name):
    layer, x = make(name, {"conv": 4}), randn(2, 100, 24, seed=1)
    _, whole = layer(x)
    _, packed = layer(x.reshape(1, 200, 24), cu_seqlens=torch.tensor([0, 150, 200]))
    for state in (whole, packed):
        for tensor in (state.conv, *state.memory.tensors().values()):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


@pytest.mark.parametrize("name", NAMES)
def test_watch_reads_every_position_and_changes_nothing(name):
    layer, x = make(name, {"conv": 4}), randn(2, 12, 24, seed=1)
    before, _ = layer(x)
    readings = layer.watch(x)
    after, state = layer(x)
    assert torch.equal(before, after)
    assert readings
    assert all(value.shape == (2, 12, 3) and value.isfinite().all() for value in readings.values())
    if name != "softmax":
        assert error(readings["|S|"][:, -1], state.memory.tensors()["S"].norm(dim=(-2, -1))) <= 1e-12
    if "vla" in name:
        assert readings["k.a"].abs().max() <= 1 + 1e-12
        assert (readings["|A|"][:, 0] > readings["|A|"][:, -1]).all()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_token_without_gradients_is_the_same_token(name, options):
    layer, x = make(name, options), randn(2, 21, 24, seed=1)
    _, state = layer(x[:, :20])
    wanted, after = layer(x[:, 20:], state)
    with torch.no_grad():
        got, found = layer(x[:, 20:], state)
        first, _ = layer(x[:, :1])
    assert error(got, wanted) <= 1e-14
    assert error(first, layer(x[:, :1])[0]) <= 1e-14
    for a, b in zip(found.memory.tensors().values(), after.memory.tensors().values(), strict=True):
        assert error(a, b) <= 1e-14


def test_state_can_be_cloned_detached_and_mapped():
    layer, x = make("vla", {"conv": 4}), randn(2, 12, 24, seed=1)
    _, state = layer(x)
    copy = state.clone().detach()
    assert not copy.memory.S.requires_grad
    assert copy.nbytes == state.nbytes
    doubled = torch.utils._pytree.tree_map(lambda x: 2 * x, copy)
    assert torch.equal(doubled.conv, 2 * copy.conv)
    assert torch.equal(doubled.memory.A, 2 * copy.memory.A)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vlaa"}, "unknown mechanism 'vlaa'; did you mean 'vla'"),
        ({"name": "vla", "lambda": 1}, "unknown option of 'vla' 'lambda'; did you mean 'lambda0'"),
        ({"name": "linear", "gate": "scalar"}, "unknown option of 'linear' 'gate'"),
        ({"name": "vla", "n_heads": 5}, "n_heads must divide d_model = 24"),
        ({"name": "vla", "gain": "best"}, "gain must be one of"),
        ({"name": "vla", "output_norm": "batch"}, "output_norm must be one of 'none', 'layer', 'rms'"),
        ({"name": "deltanet-paper", "gate": "row"}, "gate must be one of"),
        ({"name": "softmax", "conv": 0}, "conv must be at least 1"),
        ({"name": "softmax", "rotary": 0.0}, "rotary must be greater than 0"),
        ({"name": "softmax", "rotary": 1e4, "head_dim": 7}, "head_dim must be even, got 7"),
        ({"name": "vla", "rotary": 1e4}, "unknown option of 'vla' 'rotary'"),
        ({"name": "vla", "norm_eps": -1.0}, "norm_eps must be greater than 0"),
    ],
)
def test_wrong_options_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**{"d_model": 24, "n_heads": 3, **arguments})


def test_wrong_inputs_and_foreign_states_are_refused():
    vla, softmax = make("vla", {}), make("softmax", {})
    x = randn(2, 5, 24, seed=1)
    with pytest.raises(ValueError, match=r"x must have shape \[B, T, d_model = 24\]"):
        vla(x[..., :5])
    with pytest.raises(TypeError, match="initial_state must be a VLAState"):
        vla(x, softmax(x)[1])
    with pytest.raises(ValueError, match="state must hold a KVState of 2 rows"):
        softmax(x, vla(x)[1])


@pytest.mark.parametrize("name", NAMES)
def test_packing_more_than_one_row_or_wrongly_is_refused(name):
    layer, x = make(name, {"conv": 4}), randn(2, 16, 24, seed=1)
    with pytest.raises(ValueError, match="B must be 1, got 2"):
        layer(x, cu_seqlens=torch.tensor([0, 8, 16]))
    with pytest.raises(ValueError, match="cu_seqlens must end with"):
        layer(x[:1], cu_seqlens=torch.tensor([0, 8, 17]))


def test_the_norm_of_S_is_a_heads_even_with_a_gate_per_channel():
    layer = make("deltanet-paper", {"gate": "channel"})
    assert layer.watch(randn(2, 5, 24, seed=1))["|S|"].shape == (2, 5, 3)


def test_options_are_listed_with_their_defaults():
    found = options_of(MECHANISMS["vla"])
    assert found["lambda0"] == 0.1
    assert found["output_norm"] == "none"
    assert "gate" not in found
    assert options_of(MECHANISMS["deltanet-paper"])["gate"] == "scalar"


@pytest.mark.parametrize("name", NAMES)
def test_the_gate_scales_what_the_norm_gives(name):
    layer = make(name, {"output_norm": "rms", "output_gate": True, "conv": 4, "bias": False})
    x = randn(2, 9, 24, seed=1)
    before = []
    layer.norm.register_forward_hook(lambda module, inputs, output: before.append(output))
    y, _ = layer(x)
    assert error(y, layer.out(before[0] * torch.nn.functional.silu(layer.output_gate(x)))) <= 1e-14


def test_the_norms_epsilon():
    assert make("vla", {"output_norm": "layer"}).norm.eps == 1e-5
    assert make("vla", {"output_norm": "rms"}).norm.eps is None
    for norm in ("layer", "rms"):
        assert make("vla", {"output_norm": norm, "norm_eps": 1e-9}).norm.eps == 1e-9


def test_under_autocast_the_norm_works_in_its_own_type():
    layer, x = make("vla", {"output_norm": "rms"}, torch.float32), randn(2, 9, 24, seed=1, dtype=torch.float32)
    seen = []
    layer.norm.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert seen == [torch.float32]


@pytest.fixture
def attended(monkeypatch):
    """(rows, queries, mask) of every call of softmax attention."""
    seen, attention = [], softmax.attention

    def watched(q, k, v, mask, record=None):
        seen.append((q.shape[0], q.shape[1], mask))
        return attention(q, k, v, mask)

    monkeypatch.setattr(softmax, "attention", watched)
    return seen


def test_short_sequences_beside_a_long_one_are_not_made_as_long(attended):
    """What attention is given, packed: rows of about the same length, and no mask."""
    layer = make("softmax", {})
    lengths = [3, 40, 4, 0, 3, 33]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    y, _ = layer(randn(1, sum(lengths), 24, seed=1), cu_seqlens=cu_seqlens)
    assert sorted(attended) == [(2, 40, None), (3, 4, None)]
    assert y.shape == (1, sum(lengths), 24)


def test_a_softmax_step_has_a_mask_only_where_something_is_padded(attended):
    layer, x = make("softmax", {"rotary": 1e4}), randn(3, 9, 24, seed=1)
    wanted = layer(x)[0][:, 8:]

    def step(state):
        y, _ = layer(x[:, 8:], state)
        return y, attended[-1][2] is not None

    whole = layer(x[:, :8])[1]
    packed = layer(x[:, :8].reshape(1, 24, 24), cu_seqlens=torch.tensor([0, 8, 16, 24]))[1]
    for state in (whole, packed, whole.clone(), layer(x[:, 4:8], layer(x[:, :4])[1])[1]):
        y, masked = step(state)
        assert error(y, wanted) <= 1e-12
        assert not masked
    some = torch.cat((x[0, :8], x[1, :5], x[2, :8]))[None]
    uneven = layer(some, cu_seqlens=torch.tensor([0, 8, 13, 21]))[1]
    y, masked = step(uneven.map(lambda tensor: tensor[torch.tensor([2, 1, 0])]).detach())
    assert masked
    alone = layer(torch.cat((x[1:2, :5], x[1:2, 8:]), 1))[0][:, 5:]
    assert error(y[1:2], alone) <= 1e-12


def test_a_step_after_padded_rows_looks_at_nothing_that_is_padding(attended):
    """Twice in a row: what is padded once stays so, in what a step returns, too."""
    layer, x = make("softmax", {"rotary": 1e4}), randn(1, 8, 24, seed=1)
    state = layer(x, cu_seqlens=torch.tensor([0, 2, 8]))[1]
    new = randn(2, 2, 24, seed=2)
    wanted = layer(torch.cat((x[:, :2], new[:1]), 1))[0][:, 2:]
    first, state = layer(new[:, :1], state)
    second, _ = layer(new[:, 1:], state)
    assert error(torch.cat((first, second), 1)[:1], wanted) <= 1e-12
    assert all(mask is not None for _, _, mask in attended[-2:])


def test_a_number_that_is_not_finite_stays_in_its_packed_sequence():
    layer, x = make("softmax", {"rotary": 1e4}), randn(1, 10, 24, seed=1)
    x[:, 6:] = float("inf")
    cu_seqlens = torch.tensor([0, 5, 10])  # of one length: they are rows of one call
    y, state = layer(x, cu_seqlens=cu_seqlens)
    assert y[:, :5].isfinite().all()
    assert layer(x, state, cu_seqlens)[0][:, :5].isfinite().all()
