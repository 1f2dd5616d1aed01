"""What the operators do at the edges of what they accept: nothing to do, zeros, NaN."""

import pytest
import torch

from tests.ops.cases import assert_same, error
from tests.ops.operators import (
    DV,
    FUNCTIONS,
    GAINS,
    OPS,
    OPS_AND_BACKENDS,
    B,
    D,
    H,
    T,
    call,
    call_step,
    floats,
    make_inputs,
    make_state,
    outcome,
    token,
)
from varla.ops.state import PRECISIONS

NAN = float("nan")
LONG = 37
VLA_BACKENDS = ("reference", "chunk")
each_op = pytest.mark.parametrize("op", OPS)
each_op_and_backend = pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
each_backend_of_vla = pytest.mark.parametrize("backend", VLA_BACKENDS)
each_gain = pytest.mark.parametrize("gain", GAINS)


def unchanged(after, before):
    return all(torch.equal(after.tensors()[name], x) for name, x in before.tensors().items())


def with_leaves(inputs):
    return {name: x.requires_grad_() for name, x in inputs.items()}


# --- Choice and types -------------------------------------------------------------------------------------------------


@each_op
def test_auto_is_one_of_the_others(op):
    for time, chosen in ((1, "reference"), (3, "reference"), (4, "chunk"), (T, "chunk")):
        inputs, state = make_inputs(op, time=time), make_state(op)
        assert_same(outcome(op, inputs, state), outcome(op, inputs, state, backend=chosen), tolerance=0)
    inputs = make_inputs(op, time=3)
    assert torch.equal(call(op, inputs, chunk_size=2), call(op, inputs, chunk_size=2, backend="chunk"))


@each_op_and_backend
def test_mixed_types_are_accepted_under_autocast(op, backend):
    low = make_inputs(op, dtype=torch.bfloat16)
    expected = call(op, {name: x.double() for name, x in low.items()}, backend="reference")
    for wide in ("q", "v"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            o, state = call(op, {**low, wide: low[wide].float()}, backend=backend, return_state=True)
        assert o.dtype == torch.float32
        assert all(x.dtype == PRECISIONS.get(name, torch.float32) for name, x in state.tensors().items())
        assert error(o, expected) <= 0.01


# --- Nothing to do ----------------------------------------------------------------------------------------------------


@each_op_and_backend
def test_no_tokens_give_an_empty_output_and_the_state_that_came(op, backend):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        inputs = make_inputs(op, time=0, dtype=dtype)
        state = make_state(op, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        o, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
        assert o.shape == (B, 0, H, DV)
        assert o.dtype == dtype
        assert unchanged(after, state)


@each_op_and_backend
def test_no_tokens_and_no_state_give_a_fresh_state(op, backend):
    options = {"lambda0": 0.25} if FUNCTIONS.get(op, op) in ("vla", "mesa") else {}
    _, state = call(op, make_inputs(op, time=0), return_state=True, backend=backend, **options)
    fresh = {"S": torch.zeros(B, H, DV, D), "A": 4 * torch.eye(D).expand(B, H, D, D), "z": torch.zeros(B, H, D)}
    fresh |= {"f": torch.zeros(B, H), "t": torch.zeros(B, dtype=torch.int64)}
    for name, x in state.tensors().items():
        assert torch.equal(x, fresh[name].to(x.dtype))


@each_op_and_backend
def test_no_tokens_let_gradients_through_the_state(op, backend):
    inputs, state = with_leaves(make_inputs(op, time=0)), make_state(op)
    leaves = with_leaves(floats(state))
    o, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
    (o.sum() + sum((3 * x).sum() for x in floats(after).values())).backward()
    assert all(torch.equal(x.grad, torch.full_like(x, 3)) for x in leaves.values())
    assert all(x.grad is None or x.grad.shape == x.shape for x in inputs.values())


@each_op_and_backend
def test_an_empty_batch_works(op, backend):
    for time in (0, 1, T):
        inputs = with_leaves(make_inputs(op, batch=0, time=time))
        o, state = call(op, inputs, return_state=True, backend=backend)
        assert o.shape == (0, time, H, DV)
        assert state.S.shape == (0, H, DV, D)
        assert all(x.shape[0] == 0 for x in state.tensors().values())
        (o.sum() + state.S.sum()).backward()
        o, state = call(op, inputs, initial_state=state, return_state=True, backend=backend)
        assert o.shape == (0, time, H, DV)


@each_op
def test_a_step_of_an_empty_batch_works(op):
    inputs = token(make_inputs(op, batch=0), 0)
    o, state = call_step(op, inputs)
    assert o.shape == (0, H, DV)
    o, state = call_step(op, inputs, state=state)
    assert state.S.shape == (0, H, DV, D)


@each_op_and_backend
def test_nothing_but_empty_sequences_leave_their_states_alone(op, backend):
    state = make_state(op, batch=3)
    options = {"cu_seqlens": torch.zeros(4, dtype=torch.int64), "initial_state": state, "backend": backend}
    o, after = call(op, make_inputs(op, batch=1, time=0), return_state=True, **options)
    assert o.shape == (1, 0, H, DV)
    assert unchanged(after, state)


# --- Zeros ------------------------------------------------------------------------------------------------------------


@each_gain
@each_backend_of_vla
def test_a_zero_direction_leaves_the_penalty_alone_bit_for_bit(backend, gain):
    for dtype in (torch.float32, torch.float64):
        for off in ({"refresh_every": None}, {"refresh": 0.0, "refresh_every": 4}):
            inputs, state = make_inputs("vla", time=LONG, dtype=dtype), make_state("vla", dtype=dtype)
            inputs["u"] = torch.zeros_like(inputs["u"])
            options = {"backend": backend, "gain": gain, "return_state": True, **off}
            _, after = call("vla", inputs, initial_state=state, **options)
            assert torch.equal(after.A, state.A)
            _, after = call("vla", inputs, lambda0=0.5, **options)
            assert torch.equal(after.A, 2 * torch.eye(D, dtype=dtype).expand(B, H, D, D))


@each_backend_of_vla
def test_a_zero_direction_leaves_nothing_but_the_refresh(backend):
    inputs = make_inputs("vla", time=LONG)
    inputs["u"] = torch.zeros_like(inputs["u"])
    for every in (1, 5, 20):
        options = {"lambda0": 0.5, "refresh_every": every, "refresh": 0.25, "backend": backend}
        _, state = call("vla", inputs, return_state=True, **options)
        expected = (2 + 0.25 * (LONG // every)) * torch.eye(D, dtype=torch.float64)
        torch.testing.assert_close(state.A, expected.expand(B, H, D, D), rtol=1e-13, atol=1e-13)


@each_backend_of_vla
def test_a_fixed_penalty_is_not_touched_at_all(backend):
    inputs, state = make_inputs("vla", time=LONG), make_state("vla")
    options = {"update_penalty": False, "refresh_every": 2, "refresh": 0.5, "backend": backend}
    results = outcome("vla", inputs, state, **options)
    assert torch.equal(results["A"], state.A)
    assert all(x.isfinite().all() for x in results.values())


@each_gain
@each_backend_of_vla
def test_a_zero_key_writes_nothing(backend, gain):
    inputs, state = make_inputs("vla", time=LONG), make_state("vla")
    inputs["k"] = torch.zeros_like(inputs["k"])
    for normalize in (True, False):
        options = {"backend": backend, "gain": gain, "normalize_key": normalize, "feature_map": "identity"}
        _, after = call("vla", inputs, initial_state=state, return_state=True, **options)
        assert torch.equal(after.S, state.S)
        assert torch.equal(after.z, state.z)
        assert not torch.equal(after.A, state.A)


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_a_zero_key_writes_nothing_by_the_delta_rule(backend):
    inputs, state = make_inputs("delta_rule", time=LONG), make_state("delta_rule")
    inputs["k"] = torch.zeros_like(inputs["k"])
    for normalize in (True, False):
        results = outcome("delta_rule", inputs, state, backend=backend, normalize_key=normalize)
        assert torch.equal(results["S"], state.S)
        assert all(x.isfinite().all() for x in results.values())


@pytest.mark.parametrize("which", ["u", "k", "q", "v", "ku", "qkvu"])
@each_backend_of_vla
def test_zeros_give_finite_gradients(backend, which):
    for dtype in (torch.float32, torch.float64):
        state = make_state("vla", batch=1, dtype=dtype)
        for every in (1, 4):
            inputs = make_inputs("vla", batch=1, time=11, dtype=dtype)
            for name in which:
                inputs[name][:, ::every] = 0
            for gain in GAINS:
                for options in ({"normalizer": False}, {"normalizer": True, "refresh": 0.0}):
                    options |= {"feature_map": "identity", "gain": gain, "backend": backend}
                    for name, x in outcome("vla", inputs, state, **options).items():
                        assert x.isfinite().all(), (name, dtype, every, options)


@each_backend_of_vla
def test_zeros_from_the_very_first_token_give_finite_gradients(backend):
    inputs = {name: torch.zeros_like(x) for name, x in make_inputs("vla", dtype=torch.float32).items()}
    for gain in GAINS:
        results = outcome("vla", inputs, feature_map="identity", gain=gain, backend=backend)
        assert torch.equal(results["o"], torch.zeros_like(results["o"]))
        assert all(x.isfinite().all() for x in results.values())


@each_gain
@pytest.mark.parametrize("backend", ["chunk"])
def test_backends_agree_on_what_some_zeros_do(backend, gain):
    for which in ("u", "k", "ku"):
        inputs, state = make_inputs("vla", time=23), make_state("vla")
        for name in which:
            inputs[name][:, 1::3] = 0
        options = {"feature_map": "identity", "normalizer": False, "gain": gain, "refresh_every": 5}
        expected = outcome("vla", inputs, state, backend="reference", **options)
        assert_same(outcome("vla", inputs, state, backend=backend, **options), expected, tolerance=1e-11)


@pytest.mark.parametrize(("op", "backend"), [x for x in OPS_AND_BACKENDS if x[0] != "vla"])
def test_zeros_give_finite_gradients_elsewhere_too(op, backend):
    options = {"feature_map": "identity"} if op == "linear_attention" else {}
    for which in ("q", "k", "qk", "qkv"):
        inputs, state = make_inputs(op, time=11, dtype=torch.float32), make_state(op, dtype=torch.float32)
        for name in which:
            inputs[name][:, ::3] = 0
        for name, x in outcome(op, inputs, state, backend=backend, **options).items():
            assert x.isfinite().all(), (which, name)


# --- NaN --------------------------------------------------------------------------------------------------------------

NAN_CASES = [(op, backend, name) for op, backend in OPS_AND_BACKENDS for name in make_inputs(op)]


def settings_for(op, backend):
    """What may matter to where a NaN goes: the gain, and whether chunks end before rows do."""
    for gain in GAINS if op == "vla" else (None,):
        for chunk_size in (4, None) if backend == "chunk" else (None,):
            options = {"gain": gain, "refresh_every": 3} if gain else {}
            yield {"backend": backend, **options, **({"chunk_size": chunk_size} if chunk_size else {})}


@pytest.mark.parametrize(
    ("op", "backend", "name"), NAN_CASES + [(op, "step", name) for op in OPS for name in make_inputs(op)]
)
def test_nan_stays_in_its_row(op, backend, name):
    inputs, state = make_inputs(op, batch=3, time=11), make_state(op, batch=3)
    bad = {**inputs, name: inputs[name].clone()}
    bad[name][1, 5] = NAN
    for options in settings_for(op, backend):
        got = outcome(op, bad, state, **options)
        assert got["o"][1].isnan().any()
        expected = outcome(op, inputs, state, **options)
        assert_same({n: x[[0, 2]] for n, x in got.items()}, {n: x[[0, 2]] for n, x in expected.items()})


@pytest.mark.parametrize(("op", "backend", "name"), NAN_CASES)
def test_nan_stays_in_its_packed_sequence(op, backend, name):
    offsets = [0, 6, 9, 9, 14]
    inputs, state = make_inputs(op, batch=1, time=14), make_state(op, batch=4)
    along_tokens = {"o", *(f"d {n}" for n in inputs)}
    for options in settings_for(op, backend):
        options |= {"cu_seqlens": torch.tensor(offsets)}
        expected = outcome(op, inputs, state, **options)
        for where in (0, 1, 3):
            here = slice(offsets[where], offsets[where + 1])
            bad = {**inputs, name: inputs[name].clone()}
            bad[name][0, here] = NAN
            got = outcome(op, bad, state, **options)
            assert got["o"][0, here].isnan().any()
            tokens = [i for i in range(14) if not here.start <= i < here.stop]
            rows = [i for i in range(4) if i != where]
            got, wanted = (
                {n: x[:, tokens] if n in along_tokens else x[rows] for n, x in results.items()}
                for results in (got, expected)
            )
            assert_same(got, wanted)


@each_op_and_backend
def test_nan_stays_in_its_row_in_the_calls_that_follow(op, backend):
    inputs, more = make_inputs(op, batch=3, time=7), make_inputs(op, batch=3, time=7, seed=2)
    _, clean = call(op, inputs, backend=backend, return_state=True)
    expected = outcome(op, more, clean, backend=backend)
    for name in inputs:
        bad = {**inputs, name: inputs[name].clone()}
        bad[name][1, 3] = NAN
        _, poisoned = call(op, bad, backend=backend, return_state=True)
        got = outcome(op, more, poisoned, backend=backend)
        assert_same({n: x[[0, 2]] for n, x in got.items()}, {n: x[[0, 2]] for n, x in expected.items()})


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
@each_op
def test_what_is_not_finite_does_not_reach_earlier_tokens(op, bad):
    """Nor other rows and heads. In the same row and head, all later tokens are NaN where the loop has NaN."""
    inputs = make_inputs(op, time=LONG)
    clean = call(op, inputs, backend="chunk", chunk_size=16)
    refused = {float("inf"): ["beta", "decay", "strength", "forget"], -float("inf"): ["beta", "strength", "forget"]}
    if op == "mesa":  # its decay forgets A, too
        refused[-float("inf")].append("decay")
    for name in inputs.keys() - refused.get(bad, ()):
        for place in (0, 20, LONG - 1):
            spoilt = {each: x.clone() for each, x in inputs.items()}
            spoilt[name][1, place, 0] = bad
            o, state = call(op, spoilt, backend="chunk", chunk_size=16, return_state=True)
            wanted, after = call(op, spoilt, backend="reference", return_state=True)
            assert torch.equal(o[0], clean[0])
            assert torch.equal(o[1, :, 1:], clean[1, :, 1:])
            assert torch.equal(o[1, :place], clean[1, :place]), (name, place)
            lost, expected = (x[1, :, 0].isfinite().logical_not().any(-1) for x in (o, wanted))
            assert torch.equal(lost, expected), (name, place)
            for each, x in state.tensors().items():
                assert after.tensors()[each][1].isfinite().all() or not x[1, 0].isfinite().all(), (name, each)
                assert torch.equal(x[0], after.tensors()[each][0]) or error(x[0], after.tensors()[each][0]) < 1e-12


@each_op
def test_no_tokens_give_a_state_of_its_own(op):
    inputs, state = make_inputs(op, time=0), make_state(op)
    for backend in ("reference", "chunk", "auto"):
        _, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
        for name, x in after.tensors().items():
            assert torch.equal(x, state.tensors()[name])
            assert x.data_ptr() != state.tensors()[name].data_ptr(), (backend, name)
