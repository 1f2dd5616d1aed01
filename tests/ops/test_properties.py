"""What must hold for any shapes, settings, splits and backends: the operators as a whole, by random search."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import varla
from tests.ops.cases import assert_same, error, of_type, randn
from tests.ops.operators import (
    BACKENDS,
    FUNCTIONS,
    GATES,
    OPS,
    call,
    call_apart,
    call_in_pieces,
    floats,
    make_inputs,
    make_state,
    map_state,
    outcome,
    row,
)
from varla.ops.state import PRECISIONS

TOLERANCE = 1e-12
each_op = pytest.mark.parametrize("op", OPS)


# --- Random calls -----------------------------------------------------------------------------------------------------


def examples(count):
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


@dataclass
class Case:
    """One call: its tensors [B, T, H, *] by name, the state it begins with (or None) and its settings."""

    op: str
    inputs: dict[str, torch.Tensor]
    state: varla.State | None
    options: dict[str, Any]

    @property
    def time(self):
        return self.inputs["q"].shape[1]

    def results(self, **options):
        """Outputs and final state by name; `inputs` and `state` among the options replace the case's own."""
        inputs, state = options.pop("inputs", self.inputs), options.pop("state", self.state)
        o, state = call(self.op, inputs, initial_state=state, return_state=True, **self.options, **options)
        return {"o": o, **state.tensors()}

    def outcome(self, **options):
        """The same with gradients."""
        inputs, state = options.pop("inputs", self.inputs), options.pop("state", self.state)
        return outcome(self.op, inputs, state, **self.options, **options)


@st.composite
def options_for(draw, op):
    """Settings under which the recurrences neither blow up nor divide by what rounding left over."""
    options, gated, forgets, op = {}, op in FUNCTIONS, op == "forgetting_vla", FUNCTIONS.get(op, op)
    if op != "decayed_delta_rule":
        options["feature_map"] = draw(st.sampled_from(["elu1", "silu", "identity"]))
    if op in ("vla", "linear_attention"):
        # Identity features have either sign, so that q . z may pass close to zero; the clamp takes over before.
        options["normalizer"] = draw(st.booleans())
        options["eps"] = draw(st.sampled_from([1e-4, 5.0] if options["feature_map"] == "elu1" else [0.5, 2.0]))
    if op == "delta_rule" or gated:
        options["normalize_query"] = draw(st.booleans())
        options["scale"] = draw(st.sampled_from([None, 1.0, 0.3]))
    if op == "vla":
        options["gain"] = draw(st.sampled_from(["unit", "projection", "raw"]))
        options["lambda0"] = draw(st.sampled_from([0.8, 1.0, 3.0] if options["gain"] == "raw" else [0.1, 1.0]))
        options["refresh_every"] = draw(st.sampled_from([None, 1, 2, 3, 5, 20]))
        options["refresh"] = draw(st.sampled_from([0.0, 1e-3, 0.05]))
        if not gated:
            options["penalty_scale"] = draw(st.sampled_from([None, 1.0, 0.3]))
        options["update_penalty"] = draw(st.sampled_from([True, True, True, False]))
        if forgets:
            options |= {"refresh_every": None, "update_penalty": True, "beat": draw(st.sampled_from([1, 3, 6, 64]))}
        options["normalize_key"] = draw(st.sampled_from([True, True, options["gain"] != "projection"]))
    return options


@st.composite
def cases(draw, op, min_time=1, max_time=24, batch=None, rows=None, with_state=None):
    """A case of `batch` rows, or up to four; with a state for each of `rows`, where they are packed."""
    seed = draw(st.integers(0, 2**32 - 1))
    batch = draw(st.integers(1, 4)) if batch is None else batch
    time = draw(st.integers(min_time, max_time))
    sizes = {"heads": draw(st.integers(1, 3)), "dim": draw(st.integers(1, 6)), "dim_v": draw(st.integers(1, 5))}
    state = None
    if draw(st.booleans()) if with_state is None else with_state:
        state = make_state(op, batch if rows is None else rows, **sizes, seed=seed, t=draw(st.integers(0, 100)))
    return Case(op, make_inputs(op, batch, time, **sizes, seed=seed), state, draw(options_for(op)))


@st.composite
def forms_for(draw, op, steps=False):
    """A backend, with a chunk size where it has one, as keywords; with `steps`, also "step"."""
    backend = draw(st.sampled_from([*BACKENDS[op], *(["step"] if steps else [])]))
    if backend in ("chunk", "auto") and draw(st.booleans()):
        return {"backend": backend, "chunk_size": draw(st.integers(1, 30))}
    return {"backend": backend}


def assert_near(got, expected):
    """The same to TOLERANCE, save that a gradient may be zero but for rounding next to the others of its call.

    In one dimension it always is where vectors are normalised: the rounding of a zero, over a length near zero.
    """
    values = [name for name in expected if not name.startswith("d ")]
    assert_same({name: got[name] for name in values}, {name: expected[name] for name in values}, TOLERANCE)
    gradients = {name: x for name, x in expected.items() if name.startswith("d ") and x.numel()}
    if gradients:
        floor = 1.0 if expected["d q"].shape[-1] == 1 else 0.1
        largest = max(float(x.abs().max()) for x in gradients.values())
        for name, x in gradients.items():
            assert got[name].shape == x.shape
            assert x.isfinite().all(), name
            room = TOLERANCE * max(float(x.abs().max()), floor * largest)
            assert float((got[name] - x).abs().max()) <= room, name


def in_every_tensor(results, function, but=("t",)):
    return {name: x if name in but else function(x) for name, x in results.items()}


# --- Forms, pieces, packing -------------------------------------------------------------------------------------------


@each_op
@examples(50)
@given(data=st.data())
def test_backends_agree(op, data):
    case = data.draw(cases(op))
    assert_near(case.outcome(**data.draw(forms_for(op))), case.outcome(backend="reference"))


@each_op
@examples(60)
@given(data=st.data())
def test_any_split_over_any_backends_equals_the_whole(op, data):
    case = data.draw(cases(op))
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, case.time), max_size=5), label="cuts")), case.time]
    forms = [data.draw(forms_for(op, steps=True), label="piece") for _ in bounds[1:]]
    whole = case.outcome(**data.draw(forms_for(op), label="whole"))
    assert_near(case.outcome(by=call_in_pieces, bounds=bounds, forms=forms), whole)


@each_op
@examples(60)
@given(data=st.data())
def test_packed_sequences_are_as_if_alone(op, data):
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5), label="lengths")
    bounds, total = [0, *itertools.accumulate(lengths)], sum(lengths)
    case = data.draw(cases(op, batch=1, rows=len(lengths), min_time=total, max_time=total))
    offsets = torch.tensor(bounds, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    packed = case.outcome(cu_seqlens=offsets, **data.draw(forms_for(op)))
    assert_near(packed, case.outcome(by=call_apart, bounds=bounds, **data.draw(forms_for(op, steps=True))))


@each_op
@examples(50)
@given(data=st.data())
def test_the_chunk_size_does_not_matter(op, data):
    case = data.draw(cases(op, max_time=40))
    sizes = data.draw(st.tuples(st.integers(1, 50), st.one_of(st.none(), st.integers(1, 50))))
    assert_near(*(case.outcome(backend="chunk", chunk_size=size) for size in sizes))


# More tokens, rows or sequences, times heads, than a form takes in one go.


def large_case(op, batch, time, rows):
    sizes = {"heads": 8, "dim": 4, "dim_v": 3}
    options = {"refresh_every": 20, "refresh": 1e-2} if op == "vla" else {}
    return Case(op, make_inputs(op, batch, time, **sizes), make_state(op, rows, **sizes), options)


@pytest.mark.parametrize(("batch", "time"), [(30, 70), (1, 1100), (300, 5)])
@each_op
def test_large_batches_and_long_sequences(op, batch, time):
    case = large_case(op, batch, time, rows=batch)
    expected = case.outcome(backend="reference")
    for chunk_size in (None, 7):
        assert_near(case.outcome(backend="chunk", chunk_size=chunk_size), expected)


@each_op
def test_many_packed_sequences(op):
    lengths = [(37 * i) % 151 * (i % 5 > 0) for i in range(40)]
    bounds = [0, *itertools.accumulate(lengths)]
    case = large_case(op, 1, bounds[-1], rows=len(lengths))
    expected = case.outcome(by=call_apart, bounds=bounds)
    for chunk_size in (None, 7):
        got = case.outcome(cu_seqlens=torch.tensor(bounds), backend="chunk", chunk_size=chunk_size)
        assert_near(got, expected)


# --- Rows, heads, columns, layouts ------------------------------------------------------------------------------------


@each_op
@examples(40)
@given(data=st.data())
def test_rows_of_the_batch_can_be_permuted(op, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))
    order = torch.tensor(data.draw(st.permutations(range(case.inputs["q"].shape[0]))))
    permuted = {name: x[order] for name, x in case.inputs.items()}
    got = case.results(inputs=permuted, state=map_state(case.state, lambda x: x[order]), **form)
    assert_near(got, in_every_tensor(case.results(**form), lambda x: x[order], but=()))


@each_op
@examples(40)
@given(data=st.data())
def test_a_row_of_the_batch_is_as_if_alone(op, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))
    i = data.draw(st.integers(0, case.inputs["q"].shape[0] - 1))
    alone = {name: x[i : i + 1] for name, x in case.inputs.items()}
    got = case.results(inputs=alone, state=row(case.state, i), **form)
    assert_near(got, in_every_tensor(case.results(**form), lambda x: x[i : i + 1], but=()))


@each_op
@examples(40)
@given(data=st.data())
def test_heads_can_be_permuted(op, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))
    order = torch.tensor(data.draw(st.permutations(range(case.inputs["q"].shape[2]))))
    permuted = {name: x[:, :, order] for name, x in case.inputs.items()}
    got = case.results(inputs=permuted, state=map_state(case.state, lambda x: x[:, order] if x.ndim > 1 else x), **form)
    expected = case.results(**form)
    assert_near(got, {"o": expected.pop("o")[:, :, order], **in_every_tensor(expected, lambda x: x[:, order])})


@each_op
@examples(50)
@given(data=st.data())
def test_columns_of_the_values_are_independent(op, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))
    expected = case.results(**form)
    dim_v = expected["o"].shape[-1]
    cuts = sorted(data.draw(st.sets(st.integers(1, dim_v), max_size=3), label="cuts") - {dim_v})
    for begin, end in itertools.pairwise([0, *cuts, dim_v]):
        state = case.state and type(case.state)(**{**case.state.tensors(), "S": case.state.S[:, :, begin:end]})
        got = case.results(inputs={**case.inputs, "v": case.inputs["v"][..., begin:end]}, state=state, **form)
        for name, whole in {"o": expected["o"].mT, "S": expected["S"]}.items():
            columns = got[name].mT if name == "o" else got[name]
            # As near as the whole is: a single column may be close to zero.
            assert (columns - whole[..., begin:end, :]).abs().max() <= TOLERANCE * whole.abs().max()
        others = expected.keys() - {"o", "S"}
        assert_near({name: got[name] for name in others}, {name: expected[name] for name in others})


@each_op
@examples(40)
@given(data=st.data())
def test_outputs_are_linear_in_the_values(op, data):
    case, form = data.draw(cases(op, with_state=False)), data.draw(forms_for(op, steps=True))
    v = case.inputs["v"]
    other = randn(*v.shape, seed=3)
    one, two, mixed = (case.results(inputs={**case.inputs, "v": x}, **form) for x in (v, other, 2 * v - 3 * other))
    for name in ("o", "S"):
        room = TOLERANCE * (2 * one[name].abs().max() + 3 * two[name].abs().max())
        assert (mixed[name] - (2 * one[name] - 3 * two[name])).abs().max() <= room


@each_op
@examples(30)
@given(data=st.data())
def test_the_layout_in_memory_does_not_matter(op, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))

    def strided(x):
        return x if x.ndim < 2 else x.transpose(1, -1).contiguous().transpose(1, -1)

    inputs = {name: strided(x) for name, x in case.inputs.items()}
    assert_near(case.results(inputs=inputs, state=map_state(case.state, strided), **form), case.results(**form))


# --- Time -------------------------------------------------------------------------------------------------------------


@each_op
@examples(60)
@given(data=st.data())
def test_no_output_depends_on_later_tokens(op, data):
    case, form = data.draw(cases(op, min_time=2)), data.draw(forms_for(op))
    at = data.draw(st.integers(1, case.time - 1))
    leaves = {name: x.clone().requires_grad_() for name, x in case.inputs.items()}
    o = case.results(inputs=leaves, **form)["o"]
    changed = {name: x.clone() for name, x in case.inputs.items()}
    for name in data.draw(st.sets(st.sampled_from(sorted(changed)), min_size=1), label="changed"):
        fresh = randn(*changed[name][:, at:].shape, seed=9)
        changed[name][:, at:] = GATES[name](fresh) if name in GATES else 1e3 * fresh
    assert_near({"o": case.results(inputs=changed, **form)["o"][:, :at]}, {"o": o[:, :at]})

    options = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad(o[:, :at].square().sum(), list(leaves.values()), **options)
    assert all(torch.equal(grad[:, at:], torch.zeros_like(grad[:, at:])) for grad in grads)


@each_op
@examples(40)
@given(data=st.data())
def test_outputs_do_depend_on_the_token_itself_and_on_earlier_ones(op, data):
    case, form = data.draw(cases(op, min_time=2)), data.draw(forms_for(op))
    at = data.draw(st.integers(0, case.time - 2))
    v = case.inputs["v"].clone().requires_grad_()
    o = case.results(inputs={**case.inputs, "v": v}, **form)["o"]
    assert torch.autograd.grad(o[:, at].sum(), v, retain_graph=True)[0][:, at].abs().max() > 0
    # In one dimension, with full strength, the newest pair replaces the one before it.
    if case.inputs["q"].shape[-1] > 1:
        assert torch.autograd.grad(o[:, at + 1].sum(), v)[0][:, at].abs().max() > 0


# --- Scales and precisions --------------------------------------------------------------------------------------------


@examples(50)
@given(data=st.data())
def test_the_length_of_u_does_not_matter(data):
    case, form = data.draw(cases("vla")), data.draw(forms_for("vla", steps=True))
    exponents = data.draw(st.lists(st.floats(-90, 90), min_size=case.time, max_size=case.time), label="exponents")
    factors = 10 ** torch.tensor(exponents, dtype=torch.float64)[:, None, None]
    got = case.outcome(inputs={**case.inputs, "u": case.inputs["u"] * factors}, **form)
    got["d u"] *= factors
    assert_near(got, case.outcome(**form))


@pytest.mark.parametrize(
    ("dtype", "exponents"), [(torch.float32, (20, 50, 100)), (torch.float64, (300, 400, 900))], ids=["32", "64"]
)
@pytest.mark.parametrize("backend", BACKENDS["vla"][:-1])
def test_any_length_of_u_that_the_type_can_hold_will_do(backend, dtype, exponents):
    inputs = make_inputs("vla", time=9, dtype=dtype)
    results = {}
    for exponent in (0, *exponents, *(-x for x in exponents)):
        # Powers of two, so that the scaling itself rounds nothing.
        u = inputs["u"].clone().requires_grad_()
        o, state = varla.vla(**{**inputs, "u": u * 2.0**exponent}, return_state=True, backend=backend)
        (grad,) = torch.autograd.grad(o.square().sum() + state.A.square().sum(), u)
        results[exponent] = {"o": o, **floats(state), "gradient": grad}
    for got in results.values():
        assert_same(got, results[0], tolerance=1e-5 if dtype == torch.float32 else TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@each_op
@examples(20)
@given(data=st.data())
def test_low_precision_is_that_of_inputs_and_outputs_only(op, dtype, data):
    case, form = data.draw(cases(op)), data.draw(forms_for(op, steps=True))
    if FUNCTIONS.get(op, op) == "vla":
        # Other gains divide by what may be small; how far float32 then gets is not the matter here.
        case.options |= {"gain": "unit", "normalize_key": True}
    low = {name: x.to(dtype) for name, x in case.inputs.items()}
    start = None if case.state is None else of_type(case.state, torch.float32)
    got = case.results(inputs=low, state=start, **form)
    assert got["o"].dtype == dtype
    assert all(x.dtype == PRECISIONS.get(name, torch.float32) for name, x in got.items() if name != "o")

    exact = {name: x.double() for name, x in low.items()}
    start = None if start is None else of_type(start, torch.float64)
    expected = case.results(inputs=exact, state=start, backend="reference")
    # Rounding the output once, on top of float32 arithmetic.
    o = expected["o"]
    room = torch.finfo(dtype).eps / 2 * o.abs() + 1e-4 * o.abs().max()
    assert ((got["o"].double() - o).abs() <= room).all()
    assert all(error(got[name], x) <= 1e-4 for name, x in expected.items() if name != "o")
