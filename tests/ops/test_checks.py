"""Which calls are refused and how, and what the operators do at the edges of what they accept."""

import inspect
import re

import pytest
import torch

import varla

VLA_BACKENDS = ("reference", "scan", "chunk", "auto")
BACKENDS = {
    "vla": VLA_BACKENDS,
    "linear_attention": ("reference", "chunk", "auto"),
    "delta_rule": ("reference", "chunk", "auto"),
}
STATES = {
    "vla": varla.VLAState,
    "linear_attention": varla.LinearAttentionState,
    "delta_rule": varla.DeltaRuleState,
}
OPS = tuple(BACKENDS)
OPS_AND_BACKENDS = [(op, backend) for op in OPS for backend in BACKENDS[op]]
GAINS = ("unit", "projection", "raw")
B, T, H, D, DV = 2, 5, 3, 4, 6
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_inputs(op, batch=B, time=T, heads=H, dim=D, dim_v=DV, dtype=torch.float32, seed=0):
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    inputs = {"q": normal(batch, time, heads, dim), "k": normal(batch, time, heads, dim)}
    inputs["v"] = normal(batch, time, heads, dim_v)
    if op == "vla":
        inputs["u"] = normal(batch, time, heads, dim)
    if op == "delta_rule":
        inputs["beta"] = torch.sigmoid(normal(batch, time, heads))
    return inputs


def make_state(op, batch=B, heads=H, dim=D, dim_v=DV, dtype=torch.float32, seed=1, t=3):
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    tensors = {"S": normal(batch, heads, dim_v, dim), "t": torch.full((batch,), t, dtype=torch.int64)}
    if op == "vla":
        root = normal(batch, heads, dim, dim)
        tensors["A"] = root @ root.mT / dim + torch.eye(dim, dtype=dtype)
    if op in ("vla", "linear_attention"):
        tensors["z"] = normal(batch, heads, dim).abs()
    return STATES[op](**tensors)


def state_tensors(state):
    return {name: getattr(state, name) for name in ("S", "A", "z", "t") if hasattr(state, name)}


def float_tensors(state):
    return {name: x for name, x in state_tensors(state).items() if name != "t"}


def with_tensors(state, **changes):
    return type(state)(**{**state_tensors(state), **changes})


def call(op, inputs, **options):
    return getattr(varla, op)(**inputs, **options)


def call_step(op, inputs, **options):
    return getattr(varla, f"{op}_step")(**{name: x[:, 0] for name, x in inputs.items()}, **options)


def mentions(message, *fragments):
    """Whether each fragment occurs in the message, as a word; tuples stand for shapes, in either sort of bracket."""
    for fragment in fragments:
        if isinstance(fragment, tuple | list):
            pattern = r"[\[\(]\s*" + r",\s*".join(str(n) for n in fragment) + r"\s*,?\s*[\]\)]"
        else:
            pattern = rf"(?<![\w-]){re.escape(str(fragment))}(?!\w)"
        assert re.search(pattern, message), f"{fragment!r} is not in: {message}"


def came(value):
    """How a message may say what came: the value, or its type where the type is wrong."""
    return rf"got ({re.escape(str(value))}|{re.escape(repr(value))}|{type(value).__name__})(?!\w)"


def refused(op, inputs, options, *fragments, step=False, error=(ValueError, TypeError)):
    """The call is refused with a message of these fragments, and nothing that was handed in has changed."""
    given = [x for x in inputs.values() if isinstance(x, torch.Tensor) and not x.is_meta]
    if isinstance(options.get("cu_seqlens"), torch.Tensor):
        given.append(options["cu_seqlens"])
    for value in options.values():
        if isinstance(value, varla.State):
            given += [x for x in state_tensors(value).values() if isinstance(x, torch.Tensor) and not x.is_meta]
    before = [x.clone() for x in given]
    with pytest.raises(error) as caught:
        (call_step if step else call)(op, inputs, **options)
    assert type(caught.value) in (ValueError, TypeError)
    mentions(str(caught.value), *fragments)
    for now, then in zip(given, before, strict=True):
        assert torch.equal(now, then)


EACH_INPUT = [(op, name) for op in OPS for name in make_inputs(op)]
# Dv alone is free.
AXES = [(op, name, i) for op, name in EACH_INPUT for i in range(make_inputs(op)[name].ndim) if (name, i) != ("v", 3)]


# --- Tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[[1.0]], 1.5, None, "q"], ids=["list", "float", "none", "string"])
@pytest.mark.parametrize(("op", "name"), EACH_INPUT)
def test_what_is_not_a_tensor_is_refused(op, name, bad):
    inputs = make_inputs(op)
    refused(op, {**inputs, name: bad}, {}, name, type(bad).__name__)


def test_a_numpy_array_is_refused():
    inputs = make_inputs("vla")
    refused("vla", {**inputs, "k": inputs["k"].numpy()}, {}, "k", "ndarray")


@pytest.mark.parametrize("extra", [-1, 1])
@pytest.mark.parametrize(("op", "name"), EACH_INPUT)
def test_a_wrong_rank_is_refused(op, name, extra):
    inputs = make_inputs(op)
    bad = inputs[name][0] if extra < 0 else inputs[name][None]
    refused(op, {**inputs, name: bad}, {}, name, tuple(bad.shape))


@pytest.mark.parametrize("extra", [-1, 1])
@pytest.mark.parametrize(("op", "name"), EACH_INPUT)
def test_a_step_refuses_a_wrong_rank(op, name, extra):
    inputs = make_inputs(op)
    bad = inputs[name][:, :, 0] if extra < 0 else inputs[name][:, :, None]
    refused(op, {**inputs, name: bad}, {}, name, tuple(bad[:, 0].shape), step=True)


@pytest.mark.parametrize(("op", "name", "axis"), AXES)
def test_a_mismatched_dimension_is_refused(op, name, axis):
    inputs = make_inputs(op)
    bad = torch.cat([inputs[name], inputs[name].narrow(axis, 0, 1)], dim=axis)
    # Of two tensors that disagree the later one is blamed.
    refused(op, {**inputs, name: bad}, {}, name, tuple((inputs["k"] if name == "q" else bad).shape), bad.shape[axis])


@pytest.mark.parametrize(("op", "name", "axis"), AXES)
def test_dimensions_are_not_broadcast(op, name, axis):
    inputs = make_inputs(op)
    bad = inputs[name].narrow(axis, 0, 1)
    refused(op, {**inputs, name: bad}, {}, name, tuple((inputs["k"] if name == "q" else bad).shape))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", OPS)
def test_a_step_refuses_a_mismatched_dimension(op, axis):
    inputs = make_inputs(op)
    bad = inputs["k"].narrow((0, 2, 3)[axis], 0, 1)
    refused(op, {**inputs, "k": bad}, {}, "k", tuple(bad[:, 0].shape), step=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_tensors_that_are_not_floating_are_refused(op, dtype):
    inputs = {name: x.to(dtype) for name, x in make_inputs(op).items()}
    refused(op, inputs, {}, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "name"), EACH_INPUT)
def test_mixed_dtypes_are_refused(op, name, dtype):
    inputs = make_inputs(op)
    refused(op, {**inputs, name: inputs[name].to(dtype)}, {}, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("name", ["q", "v"])
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_mixed_dtypes_are_accepted_under_autocast(op, backend, name):
    low = {key: x.bfloat16() for key, x in make_inputs(op).items()}
    mixed = {**low, name: low[name].float()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, state = call(op, mixed, backend=backend, return_state=True)
    assert o.shape == (B, T, H, DV)
    assert o.dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in float_tensors(state).values())
    expected = call(op, {key: x.double() for key, x in low.items()}, backend="reference")
    assert (o.double() - expected).abs().max() <= 0.01 * expected.abs().max()


@pytest.mark.parametrize(("op", "name"), EACH_INPUT)
def test_tensors_on_different_devices_are_refused(op, name):
    inputs = make_inputs(op)
    refused(op, {**inputs, name: inputs[name].to("meta")}, {}, "meta", "cpu")


@pytest.mark.parametrize("op", OPS)
def test_a_state_on_another_device_is_refused(op):
    refused(op, make_inputs(op), {"initial_state": make_state(op).to("meta")}, "initial_state", "meta", "cpu")
    refused(op, make_inputs(op), {"state": make_state(op).to("meta")}, "state", "meta", "cpu", step=True)


# --- Packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "offsets",
    [
        torch.tensor([0, 4, 2, 5]),
        torch.tensor([0, -1, 5]),
        torch.tensor([0, 7, 5]),
        torch.tensor([1, 3, 5]),
        torch.tensor([-1, 3, 5]),
        torch.tensor([0, 3]),
        torch.tensor([0, 3, 6]),
        torch.tensor([0, 3, 4]),
        torch.tensor([0.0, 3.0, 5.0]),
        torch.tensor([False, True]),
        torch.tensor([[0, 3, 5]]),
        torch.tensor(5),
        torch.tensor([], dtype=torch.int64),
        [0, 3, 5],
        5,
    ],
    ids=[
        "unsorted",
        "negative",
        "beyond",
        "start-1",
        "start-negative",
        "ends-early",
        "ends-late",
        "ends-one-early",
        "float",
        "bool",
        "rank-2",
        "rank-0",
        "empty",
        "list",
        "int",
    ],
)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_bad_offsets_are_refused(op, backend, offsets):
    refused(op, make_inputs(op, batch=1), {"cu_seqlens": offsets, "backend": backend}, "cu_seqlens")


def test_the_refusal_of_offsets_says_what_came_and_what_is_allowed():
    inputs = make_inputs("vla", batch=1)
    refused("vla", inputs, {"cu_seqlens": torch.tensor([0, 3, 6])}, "cu_seqlens", "6", "5")
    refused("vla", inputs, {"cu_seqlens": torch.tensor([2, 3, 5])}, "cu_seqlens", "2", "0")
    refused("vla", inputs, {"cu_seqlens": torch.tensor([[0, 3, 5]])}, "cu_seqlens", (1, 3))
    with pytest.raises((ValueError, TypeError), match=r"cu_seqlens.*float32"):
        call("vla", inputs, cu_seqlens=torch.tensor([0.0, 5.0]))
    with pytest.raises((ValueError, TypeError), match=r"cu_seqlens.*list"):
        call("vla", inputs, cu_seqlens=[0, 5])


@pytest.mark.parametrize("batch", [0, 2, 3])
@pytest.mark.parametrize("op", OPS)
def test_packing_takes_a_batch_of_one(op, batch):
    refused(op, make_inputs(op, batch=batch), {"cu_seqlens": torch.tensor([0, 2, T])}, "cu_seqlens", "1", str(batch))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_both_integer_types_of_offsets_are_accepted(op, backend, dtype):
    inputs = make_inputs(op, batch=1)
    o, state = call(op, inputs, cu_seqlens=torch.tensor([0, 2, T], dtype=dtype), backend=backend, return_state=True)
    assert o.shape == (1, T, H, DV)
    assert state.t.tolist() == [2, 3]


# --- States -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [{"batch": 1}, {"batch": 3}, {"heads": 1}, {"heads": 4}, {"dim": 3}, {"dim_v": 1}, {"dim_v": 7}],
    ids=str,
)
@pytest.mark.parametrize("step", [False, True], ids=["call", "step"])
@pytest.mark.parametrize("op", OPS)
def test_a_state_of_another_shape_is_refused(op, step, shape):
    argument = "state" if step else "initial_state"
    state = make_state(op, **shape)
    refused(op, make_inputs(op), {argument: state}, argument, step=step)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in OPS for name in state_tensors(make_state(op))])
def test_each_tensor_of_a_state_is_checked(op, name):
    state = make_state(op)
    tensor = getattr(state, name)
    shorter = tensor[..., :-1]
    refused(op, make_inputs(op), {"initial_state": with_tensors(state, **{name: shorter})}, name, tuple(shorter.shape))
    flat = tensor[None]
    refused(op, make_inputs(op), {"initial_state": with_tensors(state, **{name: flat})}, name, tuple(flat.shape))
    other = tensor.to(torch.int32 if name == "t" else torch.float16)
    kind = str(other.dtype).removeprefix("torch.")
    with pytest.raises((ValueError, TypeError), match=rf"\b{name}\b.*{kind}"):
        call(op, make_inputs(op), initial_state=with_tensors(state, **{name: other}))
    refused(op, make_inputs(op), {"initial_state": with_tensors(state, **{name: None})}, name)


@pytest.mark.parametrize(
    ("inputs_dtype", "state_dtype"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", OPS)
def test_a_state_of_another_type_is_refused(op, inputs_dtype, state_dtype):
    inputs = make_inputs(op, dtype=inputs_dtype)
    state = make_state(op, dtype=state_dtype)
    name = str(state_dtype).removeprefix("torch.")
    allowed = "float64" if inputs_dtype == torch.float64 else "float32"
    with pytest.raises((ValueError, TypeError), match=rf"(?s)initial_state.*{name}") as caught:
        call(op, inputs, initial_state=state)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("step", [False, True], ids=["call", "step"])
@pytest.mark.parametrize(("op", "other"), [(op, other) for op in OPS for other in OPS if op != other])
def test_a_state_of_another_mechanism_is_refused(op, other, step):
    argument = "state" if step else "initial_state"
    fragments = (argument, STATES[op].__name__, STATES[other].__name__)
    refused(op, make_inputs(op), {argument: make_state(other)}, *fragments, step=step)


@pytest.mark.parametrize("op", OPS)
def test_tensors_outside_a_state_are_refused(op):
    state = make_state(op)
    for bad in (tuple(state_tensors(state).values()), state_tensors(state), state.S):
        fragments = ("initial_state", STATES[op].__name__, type(bad).__name__)
        refused(op, make_inputs(op), {"initial_state": bad}, *fragments)


@pytest.mark.parametrize("op", OPS)
def test_packed_sequences_need_a_state_for_each(op):
    inputs = make_inputs(op, batch=1)
    options = {"cu_seqlens": torch.tensor([0, 2, 2, T])}
    refused(op, inputs, {**options, "initial_state": make_state(op, batch=1)}, "initial_state", "3")
    refused(op, inputs, {**options, "initial_state": make_state(op, batch=2)}, "initial_state", "3")
    o = call(op, inputs, **options, initial_state=make_state(op, batch=3))
    assert o.shape == (1, T, H, DV)


# --- Settings ---------------------------------------------------------------------------------------------------------

NUMBERS = {
    "lambda0": [0, 0.0, -0.1, NAN, INF, -INF, "0.1", None],
    "refresh_every": [0, -3, 2.5, 20.0, True, False, "20"],
    "refresh": [-1e-9, -1.0, NAN, INF, "0.001", None],
    "eps": [0.0, -1e-4, NAN, INF, "1e-4", None],
    "penalty_scale": [0.0, -1.0, NAN, INF, "1"],
}
FLAGS = ("normalizer", "normalize_key", "update_penalty", "return_state")


@pytest.mark.parametrize("step", [False, True], ids=["call", "step"])
@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in NUMBERS.items() for bad in values], ids=repr)
def test_a_bad_number_is_refused(name, bad, step):
    refused("vla", make_inputs("vla"), {name: bad}, name, step=step)
    with pytest.raises((ValueError, TypeError), match=came(bad)):
        call("vla", make_inputs("vla"), **{name: bad})


@pytest.mark.parametrize("bad", [0.0, -1e-4, NAN, "1e-4", None], ids=repr)
def test_linear_attention_refuses_a_bad_eps(bad):
    refused("linear_attention", make_inputs("linear_attention"), {"eps": bad}, "eps")
    refused("linear_attention", make_inputs("linear_attention"), {"eps": bad}, "eps", step=True)


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF, "1"], ids=repr)
def test_the_delta_rule_refuses_a_bad_scale(bad):
    refused("delta_rule", make_inputs("delta_rule"), {"scale": bad}, "scale")
    refused("delta_rule", make_inputs("delta_rule"), {"scale": bad}, "scale", step=True)


@pytest.mark.parametrize("bad", [None, 0, 1, "yes", 0.0], ids=repr)
@pytest.mark.parametrize(
    ("op", "name"),
    [
        (op, name)
        for op in OPS
        for name, parameter in inspect.signature(getattr(varla, op)).parameters.items()
        if isinstance(parameter.default, bool)
    ],
)
def test_a_flag_is_a_bool(op, name, bad):
    with pytest.raises((ValueError, TypeError), match=rf"\b{name}\b.*{came(bad)}"):
        call(op, make_inputs(op), **{name: bad})
    if name != "return_state":
        refused(op, make_inputs(op), {name: bad}, name, step=True)


def test_every_flag_of_vla_is_among_those_checked():
    parameters = inspect.signature(varla.vla).parameters
    assert set(FLAGS) == {name for name, p in parameters.items() if isinstance(p.default, bool)}


@pytest.mark.parametrize("bad", ["Unit", "", "none", None, 1])
@pytest.mark.parametrize("step", [False, True], ids=["call", "step"])
def test_an_unknown_gain_is_refused(bad, step):
    refused("vla", make_inputs("vla"), {"gain": bad}, "gain", *GAINS, step=step)


@pytest.mark.parametrize("bad", ["relu", "", None, 1, torch.exp], ids=["relu", "empty", "none", "int", "function"])
@pytest.mark.parametrize("step", [False, True], ids=["call", "step"])
@pytest.mark.parametrize("op", OPS)
def test_an_unknown_feature_map_is_refused(op, bad, step):
    refused(op, make_inputs(op), {"feature_map": bad}, "feature_map", "elu1", "identity", step=step)


@pytest.mark.parametrize("bad", ["cuda", "Chunk", "", None, 1])
@pytest.mark.parametrize("op", OPS)
def test_an_unknown_backend_is_refused(op, bad):
    refused(op, make_inputs(op), {"backend": bad}, "backend", *BACKENDS[op])


@pytest.mark.parametrize("op", ["linear_attention", "delta_rule"])
def test_only_vla_has_a_scan(op):
    refused(op, make_inputs(op), {"backend": "scan"}, "backend", "scan", "reference", "chunk", "auto")


@pytest.mark.parametrize("bad", [0, -1, 2.5, 16.0, True, "16", NAN], ids=repr)
@pytest.mark.parametrize("op", OPS)
def test_a_bad_chunk_size_is_refused(op, bad):
    for options in ({"backend": "chunk"}, {}):
        refused(op, make_inputs(op), {"chunk_size": bad, **options}, "chunk_size")
        with pytest.raises((ValueError, TypeError), match=came(bad)):
            call(op, make_inputs(op), chunk_size=bad, **options)


@pytest.mark.parametrize(
    ("op", "backend"), [(op, backend) for op, backend in OPS_AND_BACKENDS if backend in ("reference", "scan")]
)
def test_a_chunk_size_without_chunks_is_refused(op, backend):
    refused(op, make_inputs(op), {"chunk_size": 16, "backend": backend}, "chunk_size", backend, "chunk")


@pytest.mark.parametrize(
    "options",
    [
        {"lambda0": 1},
        {"lambda0": 1e-6},
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
def test_values_on_the_good_side_of_each_limit_are_accepted(options):
    o, state = call("vla", make_inputs("vla"), return_state=True, **options)
    assert o.isfinite().all()
    assert state.S.isfinite().all()


@pytest.mark.parametrize("op", OPS)
def test_settings_are_keywords_only_and_unknown_ones_are_refused(op):
    inputs = make_inputs(op)
    with pytest.raises(TypeError, match="lambda_0"):
        call(op, inputs, lambda_0=0.1)
    with pytest.raises(TypeError):
        getattr(varla, op)(*inputs.values(), 0.1)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_bad_input_is_refused_before_anything_runs_even_if_there_is_nothing_to_do(op, backend):
    inputs = make_inputs(op, time=0)
    refused(op, {**inputs, "k": inputs["k"][..., :-1]}, {"backend": backend}, (B, 0, H, D - 1))
    refused(op, inputs, {"backend": backend, "feature_map": "relu"}, "feature_map")
    refused(op, inputs, {"backend": backend, "initial_state": make_state(op, heads=1)}, "initial_state")


def test_the_listing_of_backends_describes_each():
    listing = varla.backends()
    assert {"reference", "scan", "chunk"} <= set(listing)
    assert "auto" not in listing
    for name, backend in listing.items():
        assert backend.name == name
        assert isinstance(backend.summary, str)
        assert backend.summary
        assert isinstance(backend.available, bool)
        assert (backend.reason is None) if backend.available else bool(backend.reason)
    assert all(listing[name].available for name in ("reference", "scan", "chunk"))


def test_the_listing_of_backends_is_a_copy():
    varla.backends().clear()
    assert varla.backends()


# --- Nothing to do ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_no_tokens_give_an_empty_output_and_the_state_that_came(op, backend, dtype):
    inputs = make_inputs(op, time=0, dtype=dtype)
    state = make_state(op, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    o, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
    assert o.shape == (B, 0, H, DV)
    assert o.dtype == dtype
    for name, x in state_tensors(state).items():
        assert torch.equal(getattr(after, name), x)
    assert call(op, inputs, backend=backend).shape == (B, 0, H, DV)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_no_tokens_and_no_state_give_a_fresh_state(op, backend):
    options = {"lambda0": 0.25} if op == "vla" else {}
    _, state = call(op, make_inputs(op, time=0), return_state=True, backend=backend, **options)
    assert torch.equal(state.S, torch.zeros(B, H, DV, D))
    assert torch.equal(state.t, torch.zeros(B, dtype=torch.int64))
    if op == "vla":
        assert torch.equal(state.A, 4 * torch.eye(D).expand(B, H, D, D))
    if op != "delta_rule":
        assert torch.equal(state.z, torch.zeros(B, H, D))


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_no_tokens_let_gradients_through_the_state(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op, time=0).items()}
    state = make_state(op)
    leaves = {name: x.requires_grad_() for name, x in float_tensors(state).items()}
    o, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
    loss = o.sum() + sum((getattr(after, name) * 3).sum() for name in leaves)
    loss.backward()
    for x in leaves.values():
        assert torch.equal(x.grad, torch.full_like(x, 3))
    for x in inputs.values():
        assert x.grad is None or x.grad.shape == x.shape


@pytest.mark.parametrize("time", [0, 1, T])
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_an_empty_batch_works(op, backend, time):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op, batch=0, time=time).items()}
    o, state = call(op, inputs, return_state=True, backend=backend)
    assert o.shape == (0, time, H, DV)
    assert {name: x.shape[0] for name, x in state_tensors(state).items()} == dict.fromkeys(state_tensors(state), 0)
    assert state.S.shape == (0, H, DV, D)
    (o.sum() + state.S.sum()).backward()
    o, state = call(op, make_inputs(op, batch=0), initial_state=state, return_state=True, backend=backend)
    assert o.shape == (0, T, H, DV)


@pytest.mark.parametrize("op", OPS)
def test_a_step_of_an_empty_batch_works(op):
    o, state = call_step(op, make_inputs(op, batch=0))
    assert o.shape == (0, H, DV)
    o, state = call_step(op, make_inputs(op, batch=0), state=state)
    assert state.S.shape == (0, H, DV, D)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_nothing_but_empty_sequences_leave_their_states_alone(op, backend):
    inputs = make_inputs(op, batch=1, time=0)
    state = make_state(op, batch=3)
    offsets = torch.zeros(4, dtype=torch.int64)
    o, after = call(op, inputs, cu_seqlens=offsets, initial_state=state, return_state=True, backend=backend)
    assert o.shape == (1, 0, H, DV)
    for name, x in state_tensors(state).items():
        assert torch.equal(getattr(after, name), x)


# --- Zeros ------------------------------------------------------------------------------------------------------------

LONG = 37


def gradients(op, inputs, state, **options):
    """Outputs, final state and gradients of a smooth loss on all of them, by name."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    state = state.clone()
    state_leaves = {name: x.requires_grad_() for name, x in float_tensors(state).items()}
    o, after = call(op, leaves, initial_state=state, return_state=True, **options)
    gen = torch.Generator().manual_seed(7)
    loss = sum(
        (x * torch.randn(x.shape, generator=gen, dtype=x.dtype)).sum() + x.square().sum()
        for x in (o, *float_tensors(after).values())
    )
    everything = {**leaves, **state_leaves}
    grads = torch.autograd.grad(loss, list(everything.values()), allow_unused=True)
    return o, after, {name: g for name, g in zip(everything, grads, strict=True) if g is not None}


@pytest.mark.parametrize("off", [{"refresh_every": None}, {"refresh": 0.0, "refresh_every": 4}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_a_zero_direction_leaves_the_penalty_alone_bit_for_bit(backend, gain, dtype, off):
    inputs = make_inputs("vla", time=LONG, dtype=dtype)
    inputs["u"] = torch.zeros_like(inputs["u"])
    state = make_state("vla", dtype=dtype)
    _, after, grads = gradients("vla", inputs, state, backend=backend, gain=gain, lambda0=1.0, **off)
    assert torch.equal(after.A, state.A)
    assert {"q", "k", "v", "u", "S", "A", "z"} == set(grads)
    _, fresh = call("vla", inputs, backend=backend, gain=gain, lambda0=0.5, return_state=True, **off)
    assert torch.equal(fresh.A, 2 * torch.eye(D, dtype=dtype).expand(B, H, D, D))


@pytest.mark.parametrize("every", [1, 5, 20])
@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_a_zero_direction_leaves_nothing_but_the_refresh(backend, every):
    inputs = make_inputs("vla", time=LONG, dtype=torch.float64)
    inputs["u"] = torch.zeros_like(inputs["u"])
    _, state = call("vla", inputs, lambda0=0.5, refresh_every=every, refresh=0.25, backend=backend, return_state=True)
    expected = (2 + 0.25 * (LONG // every)) * torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(state.A, expected.expand(B, H, D, D), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_a_fixed_penalty_is_not_touched_at_all(backend):
    inputs = make_inputs("vla", time=LONG)
    state = make_state("vla")
    options = {"update_penalty": False, "refresh_every": 2, "refresh": 0.5, "backend": backend}
    _, after, grads = gradients("vla", inputs, state, **options)
    assert torch.equal(after.A, state.A)
    assert all(g.isfinite().all() for g in grads.values())


@pytest.mark.parametrize("normalize_key", [True, False])
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_a_zero_key_writes_nothing(backend, gain, normalize_key):
    inputs = make_inputs("vla", time=LONG)
    inputs["k"] = torch.zeros_like(inputs["k"])
    state = make_state("vla")
    options = {"backend": backend, "gain": gain, "normalize_key": normalize_key, "feature_map": "identity"}
    _, after = call("vla", inputs, initial_state=state, return_state=True, **options)
    assert torch.equal(after.S, state.S)
    assert torch.equal(after.z, state.z)
    assert not torch.equal(after.A, state.A)


@pytest.mark.parametrize("normalize_key", [True, False])
@pytest.mark.parametrize("backend", BACKENDS["delta_rule"])
def test_a_zero_key_writes_nothing_by_the_delta_rule(backend, normalize_key):
    inputs = make_inputs("delta_rule", time=LONG)
    inputs["k"] = torch.zeros_like(inputs["k"])
    state = make_state("delta_rule")
    _, after, grads = gradients("delta_rule", inputs, state, backend=backend, normalize_key=normalize_key)
    assert torch.equal(after.S, state.S)
    assert all(g.isfinite().all() for g in grads.values())


@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "at-some-tokens"])
@pytest.mark.parametrize("which", ["u", "k", "q", "v", "ku", "qkvu"])
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_zeros_give_finite_gradients(backend, gain, which, everywhere):
    for dtype in (torch.float32, torch.float64):
        inputs = make_inputs("vla", batch=1, time=11, dtype=dtype)
        for name in which:
            inputs[name][:, :: 1 if everywhere else 4] = 0
        state = make_state("vla", batch=1, dtype=dtype)
        for options in ({"normalizer": False}, {"normalizer": True}, {"normalizer": True, "refresh": 0.0}):
            settings = {"feature_map": "identity", "gain": gain, "backend": backend, **options}
            o, after, grads = gradients("vla", inputs, state, **settings)
            for name, x in {"o": o, **float_tensors(after), **grads}.items():
                assert x.isfinite().all(), (name, dtype, options)


@pytest.mark.parametrize("backend", VLA_BACKENDS)
def test_zeros_from_the_very_first_token_give_finite_gradients(backend):
    for gain in GAINS:
        inputs = {name: torch.zeros_like(x).requires_grad_() for name, x in make_inputs("vla").items()}
        o, state = call("vla", inputs, feature_map="identity", gain=gain, backend=backend, return_state=True)
        assert torch.equal(o, torch.zeros_like(o))
        grads = torch.autograd.grad(o.sum() + state.S.sum() + state.A.sum(), list(inputs.values()), allow_unused=True)
        assert all(g.isfinite().all() for g in grads if g is not None)


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("which", ["u", "k", "ku"])
@pytest.mark.parametrize("backend", ["scan", "chunk"])
def test_backends_agree_on_what_some_zeros_do(backend, which, gain):
    inputs = make_inputs("vla", time=23, dtype=torch.float64)
    for name in which:
        inputs[name][:, 1::3] = 0
    state = make_state("vla", dtype=torch.float64)
    settings = {"feature_map": "identity", "normalizer": False, "gain": gain, "refresh_every": 5}
    o, after, grads = gradients("vla", inputs, state, backend=backend, **settings)
    o_ref, after_ref, grads_ref = gradients("vla", inputs, state, backend="reference", **settings)
    for name, expected in {"o": o_ref, **float_tensors(after_ref), **grads_ref}.items():
        got = {"o": o, **float_tensors(after), **grads}[name]
        if name == "A" and expected is grads_ref.get("A"):
            got, expected = got + got.mT, expected + expected.mT
        assert (got - expected).abs().max() <= 1e-11 * expected.abs().max(), name


@pytest.mark.parametrize(("op", "backend"), [x for x in OPS_AND_BACKENDS if x[0] != "vla"])
def test_zeros_give_finite_gradients_elsewhere_too(op, backend):
    for which in ("q", "k", "qk", "qkv"):
        inputs = make_inputs(op, time=11)
        for name in which:
            inputs[name][:, ::3] = 0
        o, after, grads = gradients(op, inputs, make_state(op), backend=backend, feature_map="identity")
        for name, x in {"o": o, **float_tensors(after), **grads}.items():
            assert x.isfinite().all(), (which, name)


# --- NaN --------------------------------------------------------------------------------------------------------------


NAN_CASES = [
    (op, backend, name, chunk_size)
    for op, name in EACH_INPUT
    for backend in BACKENDS[op]
    for chunk_size in ((4, None) if backend == "chunk" else (None,))
]


@pytest.mark.parametrize(("op", "backend", "name", "chunk_size"), NAN_CASES)
def test_nan_stays_in_its_row(op, backend, name, chunk_size):
    rest = [0, 2]
    inputs = make_inputs(op, batch=3, time=11)
    bad = {**inputs, name: inputs[name].clone()}
    bad[name][1, 5] = NAN
    state = make_state(op, batch=3)
    for gain in GAINS if op == "vla" else (None,):
        options = {"backend": backend, "chunk_size": chunk_size} if chunk_size else {"backend": backend}
        options |= {"gain": gain, "refresh_every": 3} if gain else {}
        o, after, grads = gradients(op, bad, state, **options)
        o_ref, after_ref, grads_ref = gradients(op, inputs, state, **options)
        assert o[1].isnan().any()
        assert set(grads) == set(grads_ref)
        expected = {"o": o_ref, **{f"state.{n}": x for n, x in float_tensors(after_ref).items()}, **grads_ref}
        got = {"o": o, **{f"state.{n}": x for n, x in float_tensors(after).items()}, **grads}
        for key, x in expected.items():
            assert x.isfinite().all()
            assert (got[key][rest] - x[rest]).abs().max() <= 1e-5 * x[rest].abs().max(), (key, gain)


@pytest.mark.parametrize("where", [0, 1, 3])
@pytest.mark.parametrize(("op", "backend", "name", "chunk_size"), NAN_CASES)
def test_nan_stays_in_its_packed_sequence(op, backend, name, chunk_size, where):
    offsets = [0, 6, 9, 9, 14]
    begin, end = offsets[where], offsets[where + 1]
    inputs = make_inputs(op, batch=1, time=14)
    bad = {**inputs, name: inputs[name].clone()}
    bad[name][0, begin:end] = NAN
    state = make_state(op, batch=4)
    tokens = [i for i in range(14) if not begin <= i < end]
    rows = [i for i in range(4) if i != where]
    for gain in GAINS if op == "vla" else (None,):
        options = {"backend": backend, "cu_seqlens": torch.tensor(offsets)}
        options |= {"chunk_size": chunk_size} if chunk_size else {}
        options |= {"gain": gain, "refresh_every": 3} if gain else {}
        o, after, grads = gradients(op, bad, state, **options)
        o_ref, after_ref, grads_ref = gradients(op, inputs, state, **options)
        assert o[0, begin:end].isnan().any()
        assert set(grads) == set(grads_ref)
        pairs = {"o": (o[:, tokens], o_ref[:, tokens])}
        for key, x in float_tensors(after_ref).items():
            pairs[f"state.{key}"] = (getattr(after, key)[rows], x[rows])
        for key, x in grads_ref.items():
            pairs[key] = (grads[key][:, tokens], x[:, tokens]) if key in inputs else (grads[key][rows], x[rows])
        for key, (got, expected) in pairs.items():
            assert expected.isfinite().all()
            assert (got - expected).abs().max() <= 1e-5 * expected.abs().max(), (key, gain)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_nan_stays_in_its_row_in_the_calls_that_follow(op, backend):
    rest = [0, 2]
    inputs, more = make_inputs(op, batch=3, time=7), make_inputs(op, batch=3, time=7, seed=2)
    for name in inputs:
        bad = {**inputs, name: inputs[name].clone()}
        bad[name][1, 3] = NAN
        _, poisoned = call(op, bad, backend=backend, return_state=True)
        _, clean = call(op, inputs, backend=backend, return_state=True)
        o, after, grads = gradients(op, more, poisoned, backend=backend)
        o_ref, after_ref, grads_ref = gradients(op, more, clean, backend=backend)
        expected = {"o": o_ref, **{f"state.{n}": x for n, x in float_tensors(after_ref).items()}, **grads_ref}
        got = {"o": o, **{f"state.{n}": x for n, x in float_tensors(after).items()}, **grads}
        for key, x in expected.items():
            assert x.isfinite().all()
            assert (got[key][rest] - x[rest]).abs().max() <= 1e-5 * x[rest].abs().max(), (key, name)


@pytest.mark.parametrize("op", OPS)
def test_nan_stays_in_its_row_of_a_step(op):
    state = make_state(op, batch=3)
    for name, x in make_inputs(op, batch=3).items():
        inputs = make_inputs(op, batch=3)
        expected, after_ref = call_step(op, inputs, state=state)
        inputs[name] = x.clone()
        inputs[name][1] = NAN
        o, after = call_step(op, inputs, state=state)
        assert o[1].isnan().any() or after.S[1].isnan().any() or after.S[1].equal(after_ref.S[1])
        assert torch.equal(o[[0, 2]], expected[[0, 2]])
        for key, y in state_tensors(after_ref).items():
            assert torch.equal(getattr(after, key)[[0, 2]], y[[0, 2]])


# --- What the chunk-wise form refuses ---------------------------------------------------------------------------------

UNSUPPORTED = r"(?is)(double backward|second derivative|twice).*(not supported|unsupported|does not support)|"
UNSUPPORTED += r"(not supported|unsupported|does not support).*(double backward|second derivative|twice)"


def double_inputs(op):
    return {name: x.requires_grad_() for name, x in make_inputs(op, dtype=torch.float64).items()}


def gradient_penalty(inputs, loss, name):
    """Backward through the gradient of `loss` with respect to one input, as in training with a gradient penalty."""
    (grad,) = torch.autograd.grad(loss, inputs[name], create_graph=True)
    (loss + grad.square().sum()).backward()


@pytest.mark.parametrize("linear", [False, True], ids=["square", "linear"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("op", OPS)
def test_double_backward_through_chunks_is_refused_and_not_dropped(op, name, linear):
    inputs = double_inputs(op)
    o, state = call(op, inputs, backend="chunk", return_state=True)
    for x in (o, state.S) if name != "q" else (o,):
        with pytest.raises(RuntimeError, match=UNSUPPORTED):
            gradient_penalty(inputs, x.sum() if linear else x.square().sum(), name)


@pytest.mark.parametrize(("op", "backend"), [x for x in OPS_AND_BACKENDS if x[1] in ("reference", "scan")])
def test_the_other_forms_can_be_differentiated_twice(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op, 1, 3, 1, 2, 2, torch.float64).items()}
    assert torch.autograd.gradgradcheck(
        lambda *xs: call(op, dict(zip(inputs, xs, strict=True)), backend=backend), tuple(inputs.values())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [-100.0, -1e6])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_indefinite_penalty_is_an_error_chunk_by_chunk(chunk_size, scale, dtype):
    inputs = make_inputs("vla", dtype=dtype)
    state = make_state("vla", dtype=dtype)
    state.A = state.A.clone()
    state.A[1, 2] = scale * torch.eye(D, dtype=dtype)
    with pytest.raises(torch.linalg.LinAlgError):
        call("vla", inputs, initial_state=state, backend="chunk", chunk_size=chunk_size)
