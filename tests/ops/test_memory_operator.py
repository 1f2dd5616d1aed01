"""`varla.memory`: its forms agree in float64, and the other mechanisms are special cases of it."""

from itertools import pairwise

import pytest
import torch

import varla
from tests.ops.cases import assert_same
from tests.ops.memory_cases import GIVEN, OPTIONS, make, options_of, outcome
from varla.ops.chunk import op as chunk_op

LENGTHS = (1, 19, 20, 21, 67, 133)
CHUNK_SIZES = (None, 1, 7, 20, 64, 200)
CASES = [(given, name) for given in GIVEN for name in OPTIONS]


@pytest.mark.parametrize(("given", "name"), CASES)
def test_chunks_equal_the_reference(given, name):
    inputs, state = make(67, GIVEN[given][0])
    options = options_of(given, name)
    wanted = outcome(inputs, state, backend="reference", **options)
    for chunk_size in CHUNK_SIZES:
        assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted)


@pytest.mark.parametrize(
    ("given", "name"), [case for case in CASES if case[1] in ("as they are", "values, not errors")]
)
@pytest.mark.parametrize("T", LENGTHS)
def test_chunks_equal_the_reference_at_every_length(T, given, name):
    inputs, state = make(T, GIVEN[given][0])
    options = options_of(given, name)
    wanted = outcome(inputs, state, backend="reference", **options)
    for chunk_size in CHUNK_SIZES:
        assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted)


@pytest.mark.parametrize(("heads", "dim", "dim_v"), [(1, 2, 1), (3, 8, 3), (1, 32, 33)])
def test_chunks_equal_the_reference_from_a_fresh_state(heads, dim, dim_v):
    for names, options in GIVEN.values():
        inputs, _ = make(67, names, heads=heads, dim=dim, dim_v=dim_v)
        wanted = outcome(inputs, None, backend="reference", **options)
        for backend in ("chunk", "auto"):
            assert_same(outcome(inputs, None, backend=backend, **options), wanted)


@pytest.mark.parametrize("budget", [1, 30, 300])
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, decay"])
def test_segments_do_not_change_the_result(monkeypatch, given, budget):
    inputs, state = make(67, GIVEN[given][0])
    wanted = outcome(inputs, state, backend="reference", **options_of(given))
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    assert_same(outcome(inputs, state, backend="chunk", chunk_size=5, **options_of(given)), wanted)


@pytest.mark.parametrize("given", ["a, beta", "a, beta, decay"])
def test_gradcheck(given):
    inputs, state = make(9, GIVEN[given][0], batch=1, rows=1, heads=1, dim=3, dim_v=2)

    def call(S, z, *tensors):
        named = dict(zip(inputs, tensors, strict=True))
        start = varla.MemoryState(S, z, state.t)
        o, final = varla.memory(
            **named, initial_state=start, return_state=True, backend="chunk", chunk_size=4, **options_of(given)
        )
        return o, final.S, final.z

    leaves = [x.clone().requires_grad_() for x in (state.S, state.z, *inputs.values())]
    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("budget", [1, 4096])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, beta, decay"])
def test_packed_sequences_behave_as_if_alone(monkeypatch, given, backend, budget):
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    lengths = [20, 0, 41, 1, 67, 3, 0]
    inputs, state = make(sum(lengths), GIVEN[given][0], batch=1, rows=len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    options = options_of(given)

    def alone(initial_state, return_state, **named):
        found = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            start = initial_state.of(x[i : i + 1] for x in initial_state.tensors().values())
            piece = {name: x[:, begin:end] for name, x in named.items()}
            found.append(varla.memory(**piece, initial_state=start, return_state=True, backend="reference", **options))
        states = zip(*(final.tensors().values() for _, final in found), strict=True)
        return torch.cat([o for o, _ in found], 1), varla.MemoryState.of(map(torch.cat, states))

    got = outcome(inputs, state, backend=backend, cu_seqlens=cu_seqlens, **options)
    assert_same(got, outcome(inputs, state, alone))


@pytest.mark.parametrize("given", GIVEN)
def test_it_goes_on_from_a_state_in_pieces_of_any_form(given):
    inputs, state = make(67, GIVEN[given][0])
    forms = ("auto", "chunk", "auto", "chunk", "reference")

    def in_pieces(initial_state, return_state, **named):
        found = []
        for (begin, end), backend in zip(pairwise((0, 1, 20, 20, 41, 67)), forms, strict=True):
            piece = {name: x[:, begin:end] for name, x in named.items()}
            o, initial_state = varla.memory(
                **piece, initial_state=initial_state, return_state=True, backend=backend, **options_of(given)
            )
            found.append(o)
        return torch.cat(found, 1), initial_state

    wanted = outcome(inputs, state, backend="reference", **options_of(given))
    assert_same(outcome(inputs, state, in_pieces), wanted)


# --- The other mechanisms are special cases ---------------------------------------------------------------------------


def without_z(**options):
    """`memory` with the state of the delta rules, which keep no z."""

    def call(initial_state=None, return_state=True, **named):
        start = initial_state
        if start is not None:
            z = start.S.new_zeros(*start.S.shape[:2], start.S.shape[3])
            start = varla.MemoryState(start.S, z, start.t)
        o, final = varla.memory(**named, initial_state=start, return_state=True, **options)
        return o, varla.DeltaRuleState(final.S, final.t)

    return call


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("fresh", [True, False])
def test_with_strengths_along_keys_it_is_the_delta_rule(fresh, backend):
    inputs, state = make(67, "beta")
    state = None if fresh else varla.DeltaRuleState(state.S, state.t)
    for own in ({}, {"feature_map": "elu1", "scale": 0.3}, {"normalize_query": False, "normalize_key": False}):
        options = {"feature_map": "identity", "normalize_query": True, "scale": None, **own}
        memory = without_z(normalizer=False, backend=backend, **options)
        wanted = outcome(inputs, state, varla.delta_rule, backend=backend, **own)
        assert_same(outcome(inputs, state, memory), wanted)


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("fresh", [True, False])
def test_with_a_gate_along_keys_it_is_the_decayed_delta_rule(fresh, backend):
    inputs, state = make(67, "decay")
    renamed = {"log_gate" if name == "decay" else name: x for name, x in inputs.items()}
    state = None if fresh else varla.DeltaRuleState(state.S, state.t)
    for normalize_key in (True, False):
        own = {"normalize_key": normalize_key, "backend": backend}
        memory = without_z(normalizer=False, feature_map="identity", decay_first=False, **own)
        wanted = outcome(renamed, state, varla.decayed_delta_rule, **own)
        assert_same(outcome(inputs, state, memory), wanted)


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("own", [{}, {"normalizer": False}, {"eps": 0.5, "feature_map": "identity"}], ids=str)
def test_with_values_along_keys_it_is_linear_attention(own, fresh, backend):
    inputs, state = make(67)
    linear = None if fresh else varla.LinearAttentionState(state.S, state.z, state.t)
    wanted = outcome(inputs, linear, varla.linear_attention, backend=backend, **own)
    start = None if fresh else state
    assert_same(outcome(inputs, start, error=False, normalize_key=False, backend=backend, **own), wanted)


def test_directions_of_ones_own_are_used_as_they_are():
    """Along a = beta k, given as directions, it is the memory with strengths."""
    inputs, state = make(30, "beta")
    features = torch.nn.functional.elu(inputs["k"]) + 1
    a = inputs["beta"][..., None] * features / features.norm(dim=-1, keepdim=True)
    wanted, _ = varla.memory(**inputs, initial_state=state, return_state=True)
    del inputs["beta"]
    for backend in ("reference", "chunk"):
        assert_same({"o": varla.memory(**inputs, a=a, initial_state=state, backend=backend)}, {"o": wanted})


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("error", [True, False])
def test_zero_directions_write_nothing(error, backend):
    inputs, state = make(30, "a")
    inputs["a"] = torch.zeros_like(inputs["a"])
    got = outcome(inputs, state, backend=backend, error=error)
    assert_same(got, outcome(inputs, state, backend="reference", error=error))
    assert torch.equal(got["S"], state.S)
    assert not torch.equal(got["z"], state.z)  # which sums keys whatever is written


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_z_sums_key_features_as_they_are(backend):
    """Of whatever length, with and without a normaliser, whatever is written."""
    features = torch.nn.functional.elu(make(30)[0]["k"]) + 1
    for given, (names, own) in GIVEN.items():
        inputs, state = make(30, names)
        for options in ({}, {"normalizer": False}, {"normalize_key": False}):
            _, final = varla.memory(
                **inputs, initial_state=state, return_state=True, backend=backend, **{**options, **own}
            )
            d = inputs["decay"].flip(1).cumsum(1).flip(1) if "decay" in inputs else torch.zeros(2, 30, 2)
            after = torch.cat((d[:, 1:], torch.zeros_like(d[:, :1])), 1)  # the decays after each token
            wanted = d[:, 0, :, None].exp() * state.z + (after.exp()[..., None] * features).sum(1)
            assert_same({given: final.z}, {given: wanted})
