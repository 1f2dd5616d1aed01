"""`varla.memory`: edges, types, derivatives, its state, and what it refuses."""

import copy
import pickle

import pytest
import torch

import varla
from tests.ops.cases import assert_same, randn, vla_state, with_gradients
from tests.ops.memory_cases import DV, GIVEN, INPUTS, B, D, H, make, options_of, outcome

# --- Edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "chunk", "auto"])
@pytest.mark.parametrize("given", ["keys", "a, beta", "a, beta, decay"])
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
        assert state.S.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert state.z.dtype == torch.float64
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
    inputs, state = make(30, "a beta decay")
    options = options_of("a, beta, decay")
    wanted = outcome(inputs, state, backend="reference", **options)
    leaves = {name: x.clone().requires_grad_(name == needed) for name, x in inputs.items()}
    S = state.S.clone().requires_grad_(needed == "S")
    start = varla.MemoryState(S, state.z, state.t)
    o, final = varla.memory(**leaves, initial_state=start, return_state=True, backend="chunk", **options)
    sum((x * randn(*x.shape, seed=200 + i)).sum() for i, x in enumerate((o, final.S, final.z))).backward()
    leaves["S"] = S
    assert [name for name, x in leaves.items() if x.grad is not None] == [needed]
    name = "d S" if needed == "S" else f"d {INPUTS.index(needed)}"
    assert_same({"": leaves[needed].grad}, {"": wanted[name]})


def test_inputs_of_any_stride_are_read_right():
    inputs, state = make(30, "a beta decay")
    options = {**options_of("a, beta, decay"), "backend": "chunk"}

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
    inputs, _ = make(9, "a beta decay")

    def call(x):
        return varla.memory(**{**inputs, name: x}, normalizer=False, backend="chunk")

    with pytest.raises(RuntimeError, match=r"forward-mode derivatives .* use backend='reference'"):
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
        ({"feature_map": "relu"}, ValueError, "feature_map must be one of 'elu1', 'silu', 'identity', got 'relu'"),
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
        ({"decay": randn(2, 9, 2, 4, seed=0)}, ValueError, "decay must have 3 dimensions"),
        ({"decay": randn(2, 9, 2, seed=0)}, ValueError, "decay must be at most 0, got values from -.* to "),
        ({"beta": randn(2, 9, 2, seed=0)}, ValueError, "beta must be 0 to 2, got values from -"),
        ({"beta": 3 * randn(2, 9, 2, seed=0).abs()}, ValueError, "beta must be 0 to 2, got values from 0"),
        ({"decay_first": 0}, TypeError, "decay_first must be"),
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
