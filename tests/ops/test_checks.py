"""Which calls are refused, and how: the message names the argument, what came and what is allowed."""

import inspect
import re

import pytest
import torch

import varla
from tests.ops.operators import (
    BACKENDS,
    DV,
    FUNCTIONS,
    GAINS,
    LOOPS,
    OPS,
    OPS_AND_BACKENDS,
    STATES,
    B,
    D,
    H,
    T,
    call,
    call_step,
    make_inputs,
    make_state,
    token,
)

NAN, INF = float("nan"), float("inf")
EACH_INPUT = [(op, name) for op in OPS for name in make_inputs(op)]
FLAGS = {
    "vla": {"normalizer", "normalize_query", "normalize_key", "update_penalty", "return_state"},
    "linear_attention": {"normalizer", "return_state"},
    "delta_rule": {"normalize_query", "normalize_key", "return_state"},
    "decayed_delta_rule": {"normalize_key", "return_state"},
    "mesa": {"normalize_query", "normalize_key", "return_state"},
}
# Bad values of each setting that is a number.
NUMBERS = {
    ("vla", "lambda0"): [0, 0.0, -0.1, NAN, INF, -INF, "0.1", None],
    ("vla", "refresh_every"): [0, -3, 2.5, 20.0, True, False, "20"],
    ("vla", "refresh"): [-1e-9, -1.0, NAN, INF, "0.001", None],
    ("vla", "eps"): [0.0, -1e-4, NAN, INF, "1e-4", None],
    ("vla", "penalty_scale"): [0.0, -1.0, NAN, INF, "1"],
    ("vla", "beat"): [0, -3, 2.5, 20.0, True, "20", None],
    ("mesa", "lambda0"): [0, 0.0, -0.1, NAN, INF, -INF, "0.1", None],
    ("mesa", "beat"): [0, -3, 2.5, 20.0, True, "20", None],
    ("mesa", "scale"): [0.0, -1.0, NAN, INF, "1"],
    ("linear_attention", "eps"): [0.0, -1e-4, NAN, INF, "1e-4", None],
    ("delta_rule", "scale"): [0.0, -1.0, NAN, INF, "1"],
}
each_op = pytest.mark.parametrize("op", OPS)
each_input = pytest.mark.parametrize(("op", "name"), EACH_INPUT)
call_or_step = pytest.mark.parametrize("step", [False, True], ids=["call", "step"])


def mentions(message, *fragments):
    """Whether each fragment occurs in the message, as a word; tuples stand for shapes, in either sort of bracket."""
    for fragment in fragments:
        if isinstance(fragment, tuple):
            pattern = r"[\[\(]\s*" + r",\s*".join(str(n) for n in fragment) + r"\s*,?\s*[\]\)]"
        else:
            pattern = rf"(?<![\w-]){re.escape(str(fragment))}(?!\w)"
        assert re.search(pattern, message), f"{fragment!r} is not in: {message}"


def says_what_came(message, value):
    """The message gives the value, or its type where the type is wrong."""
    forms = "|".join(re.escape(text) for text in (str(value), repr(value), type(value).__name__))
    assert re.search(rf"got ({forms})(?!\w)", message), f"{value!r} is not in: {message}"


def type_name(dtype):
    return str(dtype).removeprefix("torch.")


def check_refused(op, inputs, options, *fragments, step=False):
    """The call (or step of its first token) is refused with these fragments, and nothing handed in has changed."""
    inputs = token(inputs, 0) if step else inputs
    states = [x for x in options.values() if isinstance(x, varla.State)]
    given = [*inputs.values(), *options.values(), *(x for state in states for x in state.tensors().values())]
    given = [x for x in given if isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_meta]
    before = [x.clone() for x in given]
    with pytest.raises((ValueError, TypeError)) as caught:
        (call_step if step else call)(op, inputs, **options)
    assert type(caught.value) in (ValueError, TypeError)
    mentions(str(caught.value), *fragments)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))
    return str(caught.value)


# --- Tensors ----------------------------------------------------------------------------------------------------------


@each_input
def test_what_is_not_a_tensor_is_refused(op, name):
    inputs = make_inputs(op)
    optional = inspect.signature(getattr(varla, FUNCTIONS.get(op, op))).parameters[name].default is None
    for bad in ([[1.0]], 1.5, *(() if optional else (None,)), "q", inputs[name].numpy()):
        check_refused(op, {**inputs, name: bad}, {}, name, type(bad).__name__)


@call_or_step
@each_input
def test_a_wrong_rank_is_refused(op, name, step):
    inputs = make_inputs(op)
    for bad in (inputs[name][:, :, 0], inputs[name][:, :, None]):
        shape = tuple(bad[:, 0].shape if step else bad.shape)
        check_refused(op, {**inputs, name: bad}, {}, name, shape, step=step)


@each_input
def test_dimensions_must_agree_and_are_not_broadcast(op, name):
    inputs = make_inputs(op)
    for axis in range(inputs[name].ndim):
        if (name, axis) == ("v", 3):
            continue  # Dv alone is free.
        one = inputs[name].narrow(axis, 0, 1)
        for bad in (one, torch.cat([inputs[name], one], dim=axis)):
            # Of two tensors that disagree the later one is blamed.
            blamed = inputs["k"] if name == "q" else bad
            check_refused(op, {**inputs, name: bad}, {}, name, tuple(blamed.shape), bad.shape[axis])


@each_op
def test_a_step_refuses_a_mismatched_dimension(op):
    inputs = make_inputs(op)
    for axis in (0, 2, 3):
        bad = inputs["k"].narrow(axis, 0, 1)
        check_refused(op, {**inputs, "k": bad}, {}, "k", tuple(bad[:, 0].shape), step=True)


@each_op
def test_tensors_that_are_not_floating_are_refused(op):
    for dtype in (torch.int64, torch.int32, torch.bool, torch.complex64):
        check_refused(op, {name: x.to(dtype) for name, x in make_inputs(op).items()}, {}, type_name(dtype))


@each_input
def test_mixed_types_are_refused(op, name):
    inputs = make_inputs(op)
    for dtype in (torch.int64, torch.float16, torch.float32):
        check_refused(op, {**inputs, name: inputs[name].to(dtype)}, {}, type_name(dtype))


@each_input
def test_tensors_on_different_devices_are_refused(op, name):
    inputs = make_inputs(op)
    check_refused(op, {**inputs, name: inputs[name].to("meta")}, {}, "meta", "cpu")


# --- Packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "fragments"),
    {
        "unsorted": (torch.tensor([0, 4, 2, T]), ()),
        "negative": (torch.tensor([0, -1, T]), ()),
        "beyond": (torch.tensor([0, T + 2, T]), ()),
        "starts late": (torch.tensor([2, 3, T]), (2, 0)),
        "starts early": (torch.tensor([-1, 3, T]), ()),
        "ends early": (torch.tensor([0, 3, T - 1]), (T - 1, T)),
        "ends late": (torch.tensor([0, 3, T + 1]), (T + 1, T)),
        "float": (torch.tensor([0.0, 3.0, T]), ("float32",)),
        "bool": (torch.tensor([False, True]), ("bool",)),
        "rank 2": (torch.tensor([[0, 3, T]]), ((1, 3),)),
        "rank 0": (torch.tensor(T), ()),
        "empty": (torch.tensor([], dtype=torch.int64), ()),
        "list": ([0, 3, T], ("list",)),
        "int": (T, ("int",)),
    }.values(),
    ids=str,
)
def test_bad_offsets_are_refused(offsets, fragments):
    for op, backend in OPS_AND_BACKENDS:
        options = {"cu_seqlens": offsets, "backend": backend}
        check_refused(op, make_inputs(op, batch=1), options, "cu_seqlens", *fragments)


@each_op
def test_packing_takes_a_batch_of_one(op):
    for batch in (0, 2, 3):
        check_refused(op, make_inputs(op, batch=batch), {"cu_seqlens": torch.tensor([0, 2, T])}, "cu_seqlens", 1, batch)


@each_op
def test_packed_sequences_need_a_state_for_each(op):
    inputs, offsets = make_inputs(op, batch=1), torch.tensor([0, 2, 2, T])
    for rows in (1, 2):
        options = {"cu_seqlens": offsets, "initial_state": make_state(op, batch=rows)}
        check_refused(op, inputs, options, "initial_state", 3)


# --- States -----------------------------------------------------------------------------------------------------------


@call_or_step
@each_op
def test_a_state_of_another_shape_is_refused(op, step):
    argument = "state" if step else "initial_state"
    shapes = ({"batch": 1}, {"batch": 3}, {"heads": 1}, {"heads": 4}, {"dim": 3}, {"dim_v": 1}, {"dim_v": 7})
    for shape in shapes:
        check_refused(op, make_inputs(op), {argument: make_state(op, **shape)}, argument, step=step)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in OPS for name in make_state(op).tensors()])
def test_each_tensor_of_a_state_is_checked(op, name):
    tensors = make_state(op).tensors()
    shorter, deeper = tensors[name][..., :-1], tensors[name][None]
    other = tensors[name].to(torch.int32 if name == "t" else torch.float16)
    for bad, said in (
        (shorter, tuple(shorter.shape)),
        (deeper, tuple(deeper.shape)),
        (other, type_name(other.dtype)),
        (None, "NoneType"),
    ):
        check_refused(op, make_inputs(op), {"initial_state": STATES[op](**{**tensors, name: bad})}, name, said)


@call_or_step
@each_op
def test_a_state_on_another_device_is_refused(op, step):
    argument = "state" if step else "initial_state"
    check_refused(op, make_inputs(op), {argument: make_state(op).to("meta")}, argument, "meta", "cpu", step=step)


@pytest.mark.parametrize(
    ("inputs_dtype", "state_dtype", "allowed"),
    [
        (torch.float32, torch.float64, "float32"),
        (torch.float64, torch.float32, "float64"),
        (torch.bfloat16, torch.float64, "float32"),
        (torch.bfloat16, torch.bfloat16, "float32"),
        (torch.float16, torch.float16, "float32"),
    ],
    ids=str,
)
def test_a_state_of_another_type_is_refused(inputs_dtype, state_dtype, allowed):
    for op in OPS:
        options = {"initial_state": make_state(op, dtype=state_dtype)}
        check_refused(
            op, make_inputs(op, dtype=inputs_dtype), options, "initial_state", type_name(state_dtype), allowed
        )


@call_or_step
@each_op
def test_a_state_of_another_mechanism_is_refused(op, step):
    argument = "state" if step else "initial_state"
    for other in OPS:
        if STATES[op] is not STATES[other]:
            fragments = (argument, STATES[op].__name__, STATES[other].__name__)
            check_refused(op, make_inputs(op), {argument: make_state(other)}, *fragments, step=step)


@each_op
def test_tensors_outside_a_state_are_refused(op):
    state = make_state(op)
    for bad in (tuple(state.tensors().values()), state.tensors(), state.S):
        fragments = ("initial_state", STATES[op].__name__, type(bad).__name__)
        check_refused(op, make_inputs(op), {"initial_state": bad}, *fragments)


# --- Settings ---------------------------------------------------------------------------------------------------------


@call_or_step
@pytest.mark.parametrize(("op", "name"), NUMBERS)
def test_a_bad_number_is_refused(op, name, step):
    for bad in NUMBERS[op, name]:
        says_what_came(check_refused(op, make_inputs(op), {name: bad}, name, step=step), bad)


@each_op
def test_a_flag_is_a_bool(op):
    function = FUNCTIONS.get(op, op)
    parameters = inspect.signature(getattr(varla, function)).parameters
    assert FLAGS[function] == {name for name, parameter in parameters.items() if isinstance(parameter.default, bool)}
    for name in FLAGS[function]:
        for bad in (None, 0, 1, "yes", 0.0):
            for step in (False, True) if name != "return_state" else (False,):
                says_what_came(check_refused(op, make_inputs(op), {name: bad}, name, step=step), bad)


@call_or_step
def test_an_unknown_gain_is_refused(step):
    for bad in ("Unit", "", "none", None, 1):
        check_refused("vla", make_inputs("vla"), {"gain": bad}, "gain", *GAINS, step=step)


@call_or_step
@pytest.mark.parametrize("op", ["vla", "linear_attention", "delta_rule"])
def test_an_unknown_feature_map_is_refused(op, step):
    for bad in ("relu", "", None, 1, torch.exp):
        check_refused(op, make_inputs(op), {"feature_map": bad}, "feature_map", "elu1", "identity", step=step)


@each_op
def test_an_unknown_backend_is_refused(op):
    for bad in ("cuda", "Chunk", "", None, 1, "scan"):
        check_refused(op, make_inputs(op), {"backend": bad}, "backend", *BACKENDS[op])


@each_op
def test_a_bad_chunk_size_is_refused(op):
    for bad in (0, -1, 2.5, 16.0, True, "16", NAN):
        for options in ({"backend": "chunk"}, {}):
            says_what_came(check_refused(op, make_inputs(op), {"chunk_size": bad, **options}, "chunk_size"), bad)


@pytest.mark.parametrize(("op", "backend"), LOOPS)
def test_a_chunk_size_without_chunks_is_refused(op, backend):
    check_refused(op, make_inputs(op), {"chunk_size": 16, "backend": backend}, "chunk_size", backend, "chunk")


@each_op
def test_settings_are_keywords_only_and_unknown_ones_are_refused(op):
    inputs = make_inputs(op)
    check_refused(op, inputs, {"lambda_0": 0.1}, "lambda_0")
    with pytest.raises(TypeError):
        getattr(varla, FUNCTIONS.get(op, op))(*inputs.values(), 0.1)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_bad_calls_are_refused_even_if_there_is_nothing_to_do(op, backend):
    inputs = make_inputs(op, time=0)
    check_refused(op, {**inputs, "k": inputs["k"][..., :-1]}, {"backend": backend}, (B, 0, H, D - 1))
    check_refused(op, inputs, {"backend": backend, "return_state": 1}, "return_state")
    check_refused(op, inputs, {"backend": backend, "initial_state": make_state(op, heads=1)}, "initial_state")


@pytest.mark.parametrize(
    "options",
    [
        {"lambda0": 1},
        {"lambda0": 2.5e-4},  # D = 4
        {"lambda0": 1e-30, "update_penalty": False},
        {"refresh_every": 1},
        {"refresh_every": None},
        {"refresh": 0},
        {"refresh": 0.0},
        {"eps": 1},
        {"eps": 1e-12},
        {"penalty_scale": 1},
        {"penalty_scale": 0.5},
        {"gain": "raw"},
        {"feature_map": "identity"},
        {"backend": "chunk", "chunk_size": 1},
        {"backend": "chunk", "chunk_size": 10_000},
        {"chunk_size": 16},
        {"chunk_size": None},
    ],
    ids=str,
)
def test_values_on_the_good_side_of_each_limit_are_not_refused(options):
    o, state = call("vla", make_inputs("vla", dtype=torch.float32, time=5), return_state=True, **options)
    assert o.shape == (B, 5, H, DV)
    assert o.isfinite().all()
    assert state.S.isfinite().all()


@each_op
def test_tensors_without_dense_data_are_refused(op):
    inputs = make_inputs(op)
    name, x = next(iter(inputs.items()))
    check_refused(op, {**inputs, name: x.to_sparse()}, {}, name, "dense", "torch.sparse_coo")
    nested = torch.nested.nested_tensor(list(x), layout=torch.jagged)
    check_refused(op, {**inputs, name: nested}, {}, name, "dense")
    check_refused(op, {each: y.to("meta") for each, y in inputs.items()}, {}, name, "meta device")
    whole = make_state(op)
    for odd in (whole.S.to_sparse(), torch.nested.nested_tensor(list(whole.S), layout=torch.jagged)):
        state = whole.of({**whole.tensors(), "S": odd}.values())
        check_refused(op, inputs, {"initial_state": state}, "initial_state.S", "dense")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lambda0": 2e-4}, ("lambda0", "0.000244", "float32", "float64 inputs")),
        ({"lambda0": 9e-4, "penalty_scale": 1.0}, ("lambda0", "0.000977")),
        ({"lambda0": 1e-45}, ("lambda0", "at least")),
        ({"lambda0": 1e-45, "update_penalty": False}, ("lambda0", "at least", "finite")),
        ({"lambda0": 1e39}, ("lambda0", "at most")),
        ({"lambda0": 10**400}, ("lambda0", "finite", "1329 bits")),
        ({"lambda0": 10**5000}, ("lambda0", "finite")),
        ({"refresh_every": 10**5000}, ("refresh_every", "2**63")),
        ({"penalty_scale": 1e30}, ("lambda0", "at least")),
    ],
    ids=lambda x: "" if isinstance(x, tuple) else f"{next(iter(x))}",
)
def test_penalties_that_the_state_cannot_hold_are_refused(options, words):
    check_refused("vla", make_inputs("vla", dtype=torch.float32), options, *words)


def test_float64_holds_smaller_penalties():
    inputs = {name: x.double() for name, x in make_inputs("vla").items()}
    call("vla", inputs, lambda0=1e-12)
    check_refused("vla", inputs, {"lambda0": 1e-13}, "lambda0", "float64")
