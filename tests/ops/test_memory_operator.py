"""`varla.memory`: its forms agree in float64, and the other mechanisms are special cases of it."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import logsigmoid

import varla
from tests.ops.cases import assert_same, randn, vla_state, with_gradients
from varla.ops.chunk import op as chunk_op

LENGTHS = (1, 19, 20, 21, 67, 133)
CHUNK_SIZES = (None, 1, 7, 20, 64, 200)
B, H, D, DV = 2, 2, 5, 4
INPUTS = ("q", "k", "v", "a", "beta", "log_gate")
NO_NORMALIZER = {"normalizer": False}
# The optional inputs, and the options that go with them.
GIVEN = {
    "keys": ("", {}),
    "a": ("a", {}),
    "beta": ("beta", {}),
    "a, beta": ("a beta", {}),
    "log_gate": ("log_gate", NO_NORMALIZER),
    "a, log_gate": ("a log_gate", NO_NORMALIZER),
    "beta, log_gate": ("beta log_gate", NO_NORMALIZER),
    "a, beta, log_gate": ("a beta log_gate", NO_NORMALIZER),
}
OPTIONS = {
    "as they are": {},
    "no normalizer": NO_NORMALIZER,
    "values, not errors": {"error": False},
    "values, no normalizer": {"error": False, "normalizer": False},
    "unit queries": {"normalize_query": True},
    "scale by D": {"scale": None, "normalize_query": True},
    "scale by 3": {"scale": 3},
    "keys as they are": {"normalize_key": False},
    # Without positive features the denominator changes sign: a large eps puts tokens on both sides of the clamp.
    "identity": {"feature_map": "identity", "eps": 0.5},
    "identity, values, keys as they are": {
        "feature_map": "identity", "eps": 0.5, "error": False, "normalize_key": False
    },
}  # fmt: skip
# A decayed sum has no normaliser, and no form without errors.
CASES = [
    (given, name)
    for given, (names, _) in GIVEN.items()
    for name, options in OPTIONS.items()
    if "log_gate" not in names or options.get("error", True)
]


def make(T, given="", batch=B, rows=B, heads=H, dim=D, dim_v=DV):
    """The inputs by name, and a state. Directions and unnormalised keys are short, or S would grow without bound."""
    widths = {"q": dim, "k": dim, "v": dim_v, "a": dim}
    inputs = {name: randn(batch, T, heads, width, seed=i) for i, (name, width) in enumerate(widths.items())}
    inputs["k"] = inputs["k"] / 4
    inputs["a"] = inputs["a"] / 4
    inputs["beta"] = randn(batch, T, heads, seed=5).sigmoid()
    inputs["log_gate"] = logsigmoid(3 * randn(batch, T, heads, seed=6))
    state = vla_state(B=rows, H=heads, D=dim, Dv=dim_v)
    found = {name: inputs[name] for name in INPUTS if name in ("q", "k", "v", *given.split())}
    return found, varla.MemoryState(state.S, state.z, state.t)


def outcome(inputs, state, function=varla.memory, **options):
    """Results and gradients of a call with inputs by name."""

    def call(*tensors, **keywords):
        return function(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, list(inputs.values()), state, **options)


def options_of(given, name="as they are"):
    return {**OPTIONS[name], **GIVEN[given][1]}


@pytest.mark.parametrize(("given", "name"), CASES)
def test_chunks_equal_the_reference(given, name):
    inputs, state = make(67, GIVEN[given][0])
    options = options_of(given, name)
    wanted = outcome(inputs, state, backend="reference", **options)
    for chunk_size in CHUNK_SIZES:
        assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted)


@pytest.mark.parametrize("error", [True, False])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("T", LENGTHS)
def test_chunks_equal_the_reference_at_every_length(T, given, error):
    if "log_gate" in given and not error:
        pytest.skip("a decayed sum has no form without errors")
    inputs, state = make(T, GIVEN[given][0])
    options = {**options_of(given), "error": error}
    wanted = outcome(inputs, state, backend="reference", **options)
    for chunk_size in CHUNK_SIZES:
        assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted)


@pytest.mark.parametrize(("heads", "dim", "dim_v"), [(1, 2, 1), (3, 8, 3), (1, 32, 33)])
def test_chunks_equal_the_reference_from_a_fresh_state(heads, dim, dim_v):
    for given, (names, options) in GIVEN.items():
        inputs, _ = make(67, names, heads=heads, dim=dim, dim_v=dim_v)
        wanted = outcome(inputs, None, backend="reference", **options)
        for backend in ("chunk", "auto"):
            assert_same(outcome(inputs, None, backend=backend, **options), wanted), given


@pytest.mark.parametrize("budget", [1, 30, 300])
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, log_gate"])
def test_segments_do_not_change_the_result(monkeypatch, given, budget):
    inputs, state = make(67, GIVEN[given][0])
    wanted = outcome(inputs, state, backend="reference", **options_of(given))
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    assert_same(outcome(inputs, state, backend="chunk", chunk_size=5, **options_of(given)), wanted)


@pytest.mark.parametrize("given", ["a, beta", "a, beta, log_gate"])
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
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, beta, log_gate"])
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
    for own in ({}, {"feature_map": "elu1", "normalize_query": False, "normalize_key": False, "scale": 0.3}):
        options = {"feature_map": "identity", "normalize_query": True, "scale": None, **own}
        memory = without_z(normalizer=False, backend=backend, **options)
        wanted = outcome(inputs, state, varla.delta_rule, backend=backend, **own)
        assert_same(outcome(inputs, state, memory), wanted)


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("fresh", [True, False])
def test_with_a_gate_along_keys_it_is_the_decayed_delta_rule(fresh, backend):
    inputs, state = make(67, "log_gate")
    state = None if fresh else varla.DeltaRuleState(state.S, state.t)
    for normalize_key in (True, False):
        own = {"normalize_key": normalize_key, "backend": backend}
        memory = without_z(normalizer=False, feature_map="identity", **own)
        wanted = outcome(inputs, state, varla.decayed_delta_rule, **own)
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
            assert_same({given: final.z}, {given: state.z + features.sum(1)})


# --- Edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "chunk", "auto"])
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, beta, log_gate"])
@pytest.mark.parametrize(("batch", "T"), [(2, 0), (0, 5), (0, 0)])
def test_no_tokens_or_no_rows(batch, T, given, backend):
    inputs, state = make(T, GIVEN[given][0], batch=batch, rows=batch)
    got = outcome(inputs, state, backend=backend, **options_of(given))
    assert got["o"].shape == (batch, T, H, DV)
    assert got["t"].tolist() == [x + T for x in state.t.tolist()]
    if T == 0:
        assert torch.equal(got["S"], state.S)
        assert torch.equal(got["z"], state.z)
        assert torch.equal(got["d S"], randn(*state.S.shape, seed=201))


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_types(dtype, backend):
    for names, options in GIVEN.values():
        inputs = {name: x.to(dtype) for name, x in make(30, names)[0].items()}
        o, state = varla.memory(**inputs, return_state=True, backend=backend, **options)
        assert type(state) is varla.MemoryState
        assert o.dtype == dtype
        assert {state.S.dtype, state.z.dtype} == {torch.float64 if dtype == torch.float64 else torch.float32}
        assert state.t.dtype == torch.int64
        # Computed in the precision of the state, and rounded once.
        wide = varla.memory(**{name: x.to(state.S.dtype) for name, x in inputs.items()}, backend=backend, **options)
        assert torch.equal(o, wide.to(dtype))


def test_autocast_does_not_lower_the_precision_inside():
    inputs = {name: x.float() for name, x in make(30, "a beta")[0].items()}
    for backend in ("reference", "chunk"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = varla.memory(**inputs, backend=backend)
        assert torch.equal(got, varla.memory(**inputs, backend=backend))


@pytest.mark.parametrize("needed", [*INPUTS, "S"])
def test_gradients_of_one_input_alone(needed):
    inputs, state = make(30, "a beta log_gate")
    options = options_of("a, beta, log_gate")
    wanted = outcome(inputs, state, backend="reference", **options)
    leaves = {name: x.clone().requires_grad_(name == needed) for name, x in inputs.items()}
    S = state.S.clone().requires_grad_(needed == "S")
    start = varla.MemoryState(S, state.z, state.t)
    o, final = varla.memory(**leaves, initial_state=start, return_state=True, backend="chunk", **options)
    ((o * randn(*o.shape, seed=200)).sum() + (final.S * randn(*S.shape, seed=201)).sum()).backward()
    leaves["S"] = S
    assert [name for name, x in leaves.items() if x.grad is not None] == [needed]
    name = "d S" if needed == "S" else f"d {INPUTS.index(needed)}"
    if needed != "k":  # which has a part in z, too
        assert_same({"": leaves[needed].grad}, {"": wanted[name]})


def test_inputs_of_any_stride_are_read_right():
    inputs, state = make(30, "a beta log_gate")
    options = {**options_of("a, beta, log_gate"), "backend": "chunk"}

    def strided(**named):
        tensors = {name: named.pop(name) for name in INPUTS}
        turned = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in tensors.items()}
        return varla.memory(**turned, **named)

    assert_same(outcome(inputs, state, strided, **options), outcome(inputs, state, **options), tolerance=0)
    once = varla.memory(**{name: x[:1].expand_as(x) for name, x in inputs.items()}, **options)
    assert torch.equal(once[0], once[1])


# --- Derivatives of other kinds, compiling ----------------------------------------------------------------------------


def test_double_backward_is_refused():
    inputs, _ = make(9, "a")
    a = inputs["a"].requires_grad_()
    (grad,) = torch.autograd.grad(varla.memory(**inputs, backend="chunk").sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='chunk'"):
        grad.sum().backward()


@pytest.mark.parametrize("name", INPUTS)
def test_forward_mode_is_refused(name):
    inputs, _ = make(9, "a beta log_gate")

    def call(x):
        return varla.memory(**{**inputs, name: x}, normalizer=False, backend="chunk")

    with pytest.raises(RuntimeError, match="forward-mode derivatives are not supported by backend='chunk'"):
        torch.func.jvp(call, (inputs[name],), (torch.ones_like(inputs[name]),))


def test_fullgraph_compile():
    def model(q, k, v, a, beta, **options):
        o, state = varla.memory(q, k, v, a, beta=beta, **options)
        return 2 * o, state

    inputs, state = make(21, "a beta")
    wanted = with_gradients(model, list(inputs.values()), state)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, list(inputs.values()), state), wanted)


# --- The state --------------------------------------------------------------------------------------------------------


def test_the_state_is_printed_copied_and_saved(tmp_path):
    _, state = make(1)
    count = 8 * (B * H * DV * D + B * H * D + B)
    shapes = f"S float64 [{B}, {H}, {DV}, {D}], z float64 [{B}, {H}, {D}], t int64 [{B}]"
    state.save(tmp_path / "state")
    for found in (
        state.clone(),
        copy.deepcopy(state),
        pickle.loads(pickle.dumps(state)),
        varla.MemoryState.load(tmp_path / "state"),
    ):
        assert type(found) is varla.MemoryState
        assert repr(found) == f"MemoryState({shapes}; cpu, {count:,} bytes)"
        for name, x in state.tensors().items():
            assert torch.equal(getattr(found, name), x)
    for other in (varla.LinearAttentionState, varla.DirectionState):
        with pytest.raises(ValueError, match=f"does not hold a {other.__name__}"):
            other.load(tmp_path / "state")


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"normalise": True}, TypeError, "unknown option 'normalise'; did you mean 'normaliz"),
        ({"betas": None}, TypeError, "unknown option 'betas'; did you mean 'beta'"),
        ({"gain": "unit"}, TypeError, "unknown option 'gain'"),
        ({"feature_map": "relu"}, ValueError, "feature_map must be one of 'elu1', 'identity', got 'relu'"),
        ({"eps": 0}, ValueError, "eps must be greater than 0, got 0"),
        ({"scale": 0.0}, ValueError, "scale must be greater than 0, got 0.0"),
        ({"scale": "D"}, TypeError, "scale must be a number, got 'D'"),
        ({"normalizer": 0}, TypeError, "normalizer must be"),
        ({"normalize_query": 0}, TypeError, "normalize_query must be"),
        ({"normalize_key": 0}, TypeError, "normalize_key must be"),
        ({"error": 0}, TypeError, "error must be"),
        ({"backend": "chunks"}, ValueError, "backend must be one of .*'triton', got 'chunks'"),
        ({"backend": "reference", "chunk_size": 3}, ValueError, "backend='reference' has no chunks"),
        ({"return_state": 1}, TypeError, "return_state must be"),
        ({"log_gate": randn(2, 9, 2, seed=0)}, ValueError, "log_gate needs normalizer=False and error=True"),
        (
            {"log_gate": randn(2, 9, 2, seed=0), "normalizer": False, "error": False},
            ValueError,
            "log_gate needs normalizer=False and error=True",
        ),
        ({"log_gate": randn(2, 9, 2, 4, seed=0), "normalizer": False}, ValueError, "log_gate must have 3 dimensions"),
        ({"beta": randn(2, 9, 2, 1, seed=0)}, ValueError, r"beta must have 3 dimensions \[B, T, H\]"),
        ({"beta": randn(2, 8, 2, seed=0)}, ValueError, "beta must have shape .* with T = 9 as in q"),
        ({"beta": 0.5}, TypeError, "beta must be a tensor, got float"),
        ({"a": randn(2, 9, 2, 4, seed=0)}, ValueError, "a must have shape .* with D = 5 as in q"),
        ({"a": randn(2, 9, 2, 5, seed=0).float()}, TypeError, "a must have the same dtype as q"),
        ({"k": randn(2, 9, 2, 4, seed=0)}, ValueError, "k must have shape .* with D = 5 as in q"),
        ({"v": randn(2, 9, 4, seed=0)}, ValueError, "v must have 4 dimensions"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(options, error, message):
    inputs, _ = make(9)
    with pytest.raises(error, match=message):
        varla.memory(**{**inputs, **options})


def test_wrong_states_are_named():
    inputs, state = make(9)
    for wrong in (vla_state(), varla.DeltaRuleState(state.S, state.t), varla.DirectionState(vla_state().A, state.t)):
        with pytest.raises(TypeError, match=f"initial_state must be a MemoryState or None, got {type(wrong).__name__}"):
            varla.memory(**inputs, initial_state=wrong)
    with pytest.raises(ValueError, match=r"initial_state.z must have shape \[B, H, D\] = \[2, 2, 5\], got \[2, 2, 4\]"):
        varla.memory(**inputs, initial_state=varla.MemoryState(state.S, state.z[..., :4], state.t))
    with pytest.raises(TypeError, match=r"initial_state\.S must be float64 for float64 inputs, got float32"):
        varla.memory(**inputs, initial_state=varla.MemoryState(state.S.float(), state.z, state.t))
    with pytest.raises(TypeError, match="initial_state must be a LinearAttentionState or None, got MemoryState"):
        varla.linear_attention(**inputs, initial_state=state)
