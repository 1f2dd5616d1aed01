"""What must hold for any shapes, settings, splits and backends: the operators as a whole, by random search."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import varla

TOLERANCE = 1e-12
OPS = ("vla", "linear_attention", "delta_rule")
BACKENDS = {
    "vla": ("reference", "scan", "chunk", "auto"),
    "linear_attention": ("reference", "chunk", "auto"),
    "delta_rule": ("reference", "chunk", "auto"),
}
STATES = {
    "vla": varla.VLAState,
    "linear_attention": varla.LinearAttentionState,
    "delta_rule": varla.DeltaRuleState,
}
FLOATS = {"vla": ("S", "A", "z"), "linear_attention": ("S", "z"), "delta_rule": ("S",)}
each_op = pytest.mark.parametrize("op", OPS)


def examples(count):
    return settings(max_examples=count, derandomize=True, deadline=None, database=None)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- Cases ------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One call: its tensors [B, T, H, ...] by name, the state it begins with (or None) and its settings."""

    op: str
    inputs: dict
    state: object
    options: dict

    @property
    def time(self):
        return self.inputs["q"].shape[1]


def normals(seed):
    """A source of float64 normal numbers of any shape."""
    gen = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)


def random_inputs(op, normal, batch, time, heads, dim, dim_v):
    inputs = {name: normal(batch, time, heads, dim) for name in "qk"}
    inputs["v"] = normal(batch, time, heads, dim_v)
    if op == "vla":
        inputs["u"] = normal(batch, time, heads, dim)
    if op == "delta_rule":
        inputs["beta"] = torch.sigmoid(normal(batch, time, heads))
    return inputs


def random_state(op, normal, batch, heads, dim, dim_v):
    root = normal(batch, heads, dim, dim)
    tensors = {
        "S": normal(batch, heads, dim_v, dim),
        "A": root @ root.mT / dim + torch.eye(dim, dtype=torch.float64),
        "z": normal(batch, heads, dim).abs(),
    }
    t = (50 * normal(batch).abs()).long()
    return STATES[op](**{name: tensors[name] for name in FLOATS[op]}, t=t)


@st.composite
def options_for(draw, op):
    """Settings under which the recurrences neither blow up nor divide by what rounding left over."""
    options = {}
    if op != "delta_rule":
        # Identity features have either sign, so that q . z may pass close to zero; the clamp takes over before.
        options["feature_map"] = draw(st.sampled_from(["elu1", "identity"]))
        options["normalizer"] = draw(st.booleans())
        options["eps"] = draw(st.sampled_from([1e-4, 5.0] if options["feature_map"] == "elu1" else [0.5, 2.0]))
    if op == "delta_rule":
        options["feature_map"] = draw(st.sampled_from(["elu1", "identity"]))
        options["normalize_query"] = draw(st.booleans())
        options["scale"] = draw(st.sampled_from([None, 1.0, 0.3]))
    if op == "vla":
        options["gain"] = draw(st.sampled_from(["unit", "projection", "raw"]))
        options["lambda0"] = draw(st.sampled_from([0.8, 1.0, 3.0] if options["gain"] == "raw" else [0.1, 1.0]))
        options["refresh_every"] = draw(st.sampled_from([None, 1, 2, 3, 5, 20]))
        options["refresh"] = draw(st.sampled_from([0.0, 1e-3, 0.05]))
        options["penalty_scale"] = draw(st.sampled_from([None, 1.0, 0.3]))
        options["update_penalty"] = draw(st.sampled_from([True, True, True, False]))
        options["normalize_key"] = draw(st.sampled_from([True, True, options["gain"] != "projection"]))
    return options


@st.composite
def cases(draw, op, min_time=1, max_time=24, max_batch=3, batch=None, with_state=None):
    seed = draw(st.integers(0, 2**32 - 1))
    batch = draw(st.integers(1, max_batch)) if batch is None else batch
    time = draw(st.integers(min_time, max_time))
    heads, dim, dim_v = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    normal = normals(seed)
    inputs = random_inputs(op, normal, batch, time, heads, dim, dim_v)
    state = None
    if draw(st.booleans()) if with_state is None else with_state:
        state = random_state(op, normal, batch, heads, dim, dim_v)
    return Case(op, inputs, state, draw(options_for(op)))


@st.composite
def backends_for(draw, op, steps=False):
    """A backend with a chunk size where it has one, as keywords; with `steps`, also "step"."""
    backend = draw(st.sampled_from([*BACKENDS[op], *(["step"] if steps else [])]))
    if backend in ("chunk", "auto") and draw(st.booleans()):
        return {"backend": backend, "chunk_size": draw(st.integers(1, 30))}
    return {"backend": backend}


def call(case, backend, **changes):
    """(o, state) of a case, some of whose fields may be changed, by a backend or by steps."""
    inputs, state = changes.pop("inputs", case.inputs), changes.pop("state", case.state)
    if backend["backend"] != "step":
        return getattr(varla, case.op)(
            **inputs, initial_state=state, return_state=True, **case.options, **backend, **changes
        )
    if inputs["q"].shape[1] == 0:
        return call(case, {"backend": "reference"}, inputs=inputs, state=state)
    step, outputs = getattr(varla, f"{case.op}_step"), []
    for i in range(inputs["q"].shape[1]):
        o, state = step(**{name: x[:, i] for name, x in inputs.items()}, state=state, **case.options)
        outputs.append(o)
    return torch.stack(outputs, dim=1), state


def near(got, expected, what, tolerance=TOLERANCE):
    assert got.shape == expected.shape, what
    assert got.dtype == expected.dtype, what
    if expected.numel():
        assert expected.isfinite().all(), what
        got, expected = got.detach(), expected.detach()
        assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max()), what


def near_state(op, got, expected, tolerance=TOLERANCE):
    assert type(got) is type(expected) is STATES[op]
    assert torch.equal(got.t, expected.t)
    for name in FLOATS[op]:
        near(getattr(got, name), getattr(expected, name), f"state.{name}", tolerance)


def map_state(state, function):
    return None if state is None else type(state)(**{name: function(x) for name, x in vars(state).items()})


def weights_like(x, seed):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves_of(case):
    """The case with fresh leaves for inputs and state, and these leaves by name."""
    inputs = {name: x.clone().requires_grad_() for name, x in case.inputs.items()}
    leaves, state = dict(inputs), None
    if case.state is not None:
        roots = {name: getattr(case.state, name).clone().requires_grad_() for name in FLOATS[case.op]}
        leaves |= {f"state.{name}": x for name, x in roots.items()}
        tensors = dict(roots)
        if case.op == "vla":
            # A is symmetric; so is what a gradient may say about it.
            tensors["A"] = (roots["A"] + roots["A"].mT) / 2
        state = STATES[case.op](**tensors, t=case.state.t)
    return Case(case.op, inputs, state, case.options), leaves


def gradients(loss, leaves):
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), grads, strict=True)}


def near_gradients(got, expected):
    """As near as values are, save that a gradient may be zero but for rounding next to the others of its call.

    In one dimension it always is where vectors are normalised: the rounding of a zero, over a length near zero.
    """
    floor = 1.0 if expected["q"].shape[-1] == 1 else 0.1
    largest = max((float(x.abs().max()) for x in expected.values() if x.numel()), default=0.0)
    for name, x in expected.items():
        assert got[name].shape == x.shape
        assert x.isfinite().all(), name
        if x.numel():
            room = TOLERANCE * max(float(x.abs().max()), floor * largest)
            assert float((got[name] - x).abs().max()) <= room, name


# --- Properties -------------------------------------------------------------------------------------------------------


@each_op
@examples(80)
@given(data=st.data())
def test_backends_agree(op, data):
    case = data.draw(cases(op))
    backend = data.draw(backends_for(op))
    results = []
    for form in ({"backend": "reference"}, backend):
        copy, leaves = leaves_of(case)
        o, state = call(copy, form)
        loss = (o * weights_like(o, 1)).sum() + sum((getattr(state, n) * 0.3).square().sum() for n in FLOATS[op])
        results.append((o, state, gradients(loss, leaves)))
    (o, state, grads), (got_o, got_state, got_grads) = results
    near(got_o, o, "o")
    near_state(op, got_state, state)
    near_gradients(got_grads, grads)


@each_op
@examples(100)
@given(data=st.data())
def test_any_split_over_any_backends_equals_the_whole(op, data):
    case = data.draw(cases(op))
    cuts = sorted(data.draw(st.lists(st.integers(0, case.time), max_size=5), label="cuts"))
    whole, leaves = leaves_of(case)
    o, state = call(whole, data.draw(backends_for(op), label="whole"))
    weights = weights_like(o, 1)
    expected = gradients((o * weights).sum() + state.S.sum(), leaves)

    pieces, leaves = leaves_of(case)
    carried, outputs = pieces.state, []
    for begin, end in itertools.pairwise([0, *cuts, case.time]):
        part = {name: x[:, begin:end] for name, x in pieces.inputs.items()}
        backend = data.draw(backends_for(op, steps=True), label=f"{begin}:{end}")
        got, carried = call(pieces, backend, inputs=part, state=carried)
        outputs.append(got)
    got = torch.cat(outputs, dim=1)
    near(got, o, "o")
    near_state(op, carried, state)
    near_gradients(gradients((got * weights).sum() + carried.S.sum(), leaves), expected)


@each_op
@examples(100)
@given(data=st.data())
def test_packed_sequences_are_as_if_alone(op, data):
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5), label="lengths")
    total, count = sum(lengths), len(lengths)
    case = data.draw(cases(op, batch=1, min_time=total, max_time=total))
    alone_by, packed_by = data.draw(backends_for(op, steps=True)), data.draw(backends_for(op))
    offsets = [0, *itertools.accumulate(lengths)]
    heads, dim, dim_v = *case.inputs["q"].shape[2:], case.inputs["v"].shape[-1]
    if case.state is not None:
        case.state = random_state(op, normals(5), count, heads, dim, dim_v)
    kind = data.draw(st.sampled_from([torch.int32, torch.int64]))

    packed, leaves = leaves_of(case)
    o, state = call(packed, packed_by, cu_seqlens=torch.tensor(offsets, dtype=kind))
    weights = weights_like(o, 1)
    assert state.S.shape == (count, heads, dim_v, dim)
    got_gradients = gradients((o * weights).sum() + state.S.sum(), leaves)

    alone, leaves = leaves_of(case)
    outputs, states = [], []
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        part = {name: x[:, begin:end] for name, x in alone.inputs.items()}
        mine = map_state(alone.state, lambda x, i=i: x[i : i + 1])
        one_o, one_state = call(alone, alone_by, inputs=part, state=mine)
        outputs.append(one_o)
        states.append(one_state)
    expected_o = torch.cat(outputs, dim=1)
    expected = STATES[op](**{name: torch.cat([getattr(x, name) for x in states]) for name in (*FLOATS[op], "t")})
    near(o, expected_o, "o")
    near_state(op, state, expected)
    near_gradients(got_gradients, gradients((expected_o * weights).sum() + expected.S.sum(), leaves))


@each_op
@examples(60)
@given(data=st.data())
def test_rows_of_the_batch_can_be_permuted(op, data):
    case = data.draw(cases(op, max_batch=4))
    order = torch.tensor(data.draw(st.permutations(range(case.inputs["q"].shape[0]))))
    backend = data.draw(backends_for(op, steps=True))
    o, state = call(case, backend)
    permuted = {name: x[order] for name, x in case.inputs.items()}
    got, got_state = call(case, backend, inputs=permuted, state=map_state(case.state, lambda x: x[order]))
    near(got, o[order], "o")
    near_state(op, got_state, map_state(state, lambda x: x[order]))


@each_op
@examples(60)
@given(data=st.data())
def test_a_row_of_the_batch_is_as_if_alone(op, data):
    case = data.draw(cases(op, max_batch=4))
    row = data.draw(st.integers(0, case.inputs["q"].shape[0] - 1))
    backend = data.draw(backends_for(op, steps=True))
    o, state = call(case, backend)
    alone = {name: x[row : row + 1] for name, x in case.inputs.items()}
    got, got_state = call(case, backend, inputs=alone, state=map_state(case.state, lambda x: x[row : row + 1]))
    near(got, o[row : row + 1], "o")
    near_state(op, got_state, map_state(state, lambda x: x[row : row + 1]))


@each_op
@examples(60)
@given(data=st.data())
def test_heads_can_be_permuted(op, data):
    case = data.draw(cases(op))
    order = torch.tensor(data.draw(st.permutations(range(case.inputs["q"].shape[2]))))
    backend = data.draw(backends_for(op, steps=True))
    o, state = call(case, backend)

    def permute(x):
        return x[:, order] if x.ndim > 1 else x

    permuted = {name: x[:, :, order] for name, x in case.inputs.items()}
    got, got_state = call(case, backend, inputs=permuted, state=map_state(case.state, permute))
    near(got, o[:, :, order], "o")
    near_state(op, got_state, map_state(state, permute))


@each_op
@examples(80)
@given(data=st.data())
def test_the_chunk_size_does_not_matter(op, data):
    case = data.draw(cases(op, max_time=40))
    sizes = data.draw(st.tuples(st.integers(1, 50), st.one_of(st.none(), st.integers(1, 50))))
    results = []
    for size in sizes:
        copy, leaves = leaves_of(case)
        o, state = call(copy, {"backend": "chunk", "chunk_size": size})
        loss = (o * weights_like(o, 1)).sum() + sum(getattr(state, n).square().sum() for n in FLOATS[op])
        results.append((o, state, gradients(loss, leaves)))
    (o, state, grads), (got_o, got_state, got_grads) = results
    near(got_o, o, "o")
    near_state(op, got_state, state)
    near_gradients(got_grads, grads)


@examples(80)
@given(data=st.data())
def test_the_length_of_u_does_not_matter(data):
    case = data.draw(cases("vla"))
    backend = data.draw(backends_for("vla", steps=True))
    exponents = data.draw(st.lists(st.floats(-90, 90), min_size=case.time, max_size=case.time), label="exponents")
    factors = 10 ** torch.tensor(exponents, dtype=torch.float64)
    results = []
    for factor in (1.0, factors[:, None, None]):
        copy, leaves = leaves_of(case)
        o, state = call(copy, backend, inputs={**copy.inputs, "u": copy.inputs["u"] * factor})
        loss = (o * weights_like(o, 1)).sum() + sum(getattr(state, n).square().sum() for n in FLOATS["vla"])
        results.append((o, state, gradients(loss, leaves)))
    (o, state, grads), (got_o, got_state, got_grads) = results
    near(got_o, o, "o")
    near_state("vla", got_state, state)
    near_gradients(got_grads, grads)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [
        *((torch.float32, sign * x) for x in (20, 50, 100) for sign in (1, -1)),
        *((torch.float64, sign * x) for x in (300, 400, 900) for sign in (1, -1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS["vla"])
def test_any_length_of_u_that_the_type_can_hold_will_do(backend, dtype, exponent):
    # Powers of two, so that the scaling itself rounds nothing.
    q, k, v, u = (weights_like(torch.empty(2, 9, 2, 4), seed).to(dtype) for seed in range(4))
    results = []
    for factor in (1.0, 2.0**exponent):
        leaf = u.clone().requires_grad_()
        o, state = varla.vla(q, k, v, leaf * factor, return_state=True, backend=backend)
        (grad,) = torch.autograd.grad(o.square().sum() + state.A.square().sum(), leaf)
        results.append((o, state.A, state.S, grad))
    for name, expected, got in zip(("o", "A", "S", "gradient"), *results, strict=True):
        near(got, expected, name, tolerance=1e-5 if dtype == torch.float32 else TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@each_op
@examples(30)
@given(data=st.data())
def test_low_precision_is_that_of_inputs_and_outputs_only(op, dtype, data):
    case = data.draw(cases(op))
    if op == "vla":
        # Other gains divide by what may be small; how far float32 then gets is not the matter here.
        case.options |= {"gain": "unit", "normalize_key": True}
    backend = data.draw(backends_for(op, steps=True))
    low = {name: x.to(dtype) for name, x in case.inputs.items()}
    start = map_state(case.state, lambda x: x.float() if x.is_floating_point() else x)
    o, state = call(case, backend, inputs=low, state=start)
    assert o.dtype == dtype
    assert all(getattr(state, name).dtype == torch.float32 for name in FLOATS[op])
    assert state.t.dtype == torch.int64
    expected, expected_state = call(
        case,
        {"backend": "reference"},
        inputs={name: x.double() for name, x in low.items()},
        state=map_state(start, lambda x: x.double() if x.is_floating_point() else x),
    )
    assert expected.dtype == torch.float64
    assert expected_state.S.dtype == torch.float64
    # Rounding the output once, on top of float32 arithmetic.
    room = torch.finfo(dtype).eps / 2 * expected.abs() + 1e-4 * expected.abs().max()
    assert ((o.double() - expected).abs() <= room).all()
    for name in FLOATS[op]:
        near(getattr(state, name).double(), getattr(expected_state, name), name, tolerance=1e-4)


@each_op
@examples(100)
@given(data=st.data())
def test_no_output_depends_on_later_tokens(op, data):
    case = data.draw(cases(op, min_time=2))
    at = data.draw(st.integers(1, case.time - 1))
    backend = data.draw(backends_for(op))
    o, _ = call(case, backend)
    changed = {name: x.clone() for name, x in case.inputs.items()}
    for name in data.draw(st.sets(st.sampled_from(sorted(changed)), min_size=1), label="changed"):
        fresh = weights_like(changed[name][:, at:], 9)
        changed[name][:, at:] = torch.sigmoid(fresh) if name == "beta" else 1e3 * fresh
    got, _ = call(case, backend, inputs=changed)
    near(got[:, :at], o[:, :at], "o")

    copy, leaves = leaves_of(case)
    o, _ = call(copy, backend)
    for name, grad in gradients(o[:, :at].square().sum(), leaves).items():
        if name in case.inputs:
            assert torch.equal(grad[:, at:], torch.zeros_like(grad[:, at:])), name


@each_op
@examples(60)
@given(data=st.data())
def test_outputs_do_depend_on_the_token_itself_and_on_earlier_ones(op, data):
    case = data.draw(cases(op, min_time=2))
    at = data.draw(st.integers(0, case.time - 2))
    backend = data.draw(backends_for(op))
    copy, leaves = leaves_of(case)
    o, _ = call(copy, backend)
    assert torch.autograd.grad(o[:, at].sum(), leaves["v"], retain_graph=True)[0][:, at].abs().max() > 0
    # In one dimension, with full strength, the newest pair replaces the one before it.
    if case.inputs["q"].shape[-1] > 1:
        assert torch.autograd.grad(o[:, at + 1].sum(), leaves["v"])[0][:, at].abs().max() > 0


@each_op
@examples(80)
@given(data=st.data())
def test_columns_of_the_values_are_independent(op, data):
    case = data.draw(cases(op))
    backend = data.draw(backends_for(op, steps=True))
    o, state = call(case, backend)
    dim_v = o.shape[-1]
    cuts = sorted(data.draw(st.sets(st.integers(1, dim_v), max_size=3), label="cuts") - {dim_v})
    outputs, memories = [], []
    for begin, end in itertools.pairwise([0, *cuts, dim_v]):
        mine = case.state and type(case.state)(**{**vars(case.state), "S": case.state.S[:, :, begin:end]})
        part = {**case.inputs, "v": case.inputs["v"][..., begin:end]}
        got, got_state = call(case, backend, inputs=part, state=mine)
        outputs.append(got)
        memories.append(got_state.S)
        for name in set(FLOATS[op]) - {"S"}:
            near(getattr(got_state, name), getattr(state, name), name)
    near(torch.cat(outputs, dim=-1), o, "o")
    near(torch.cat(memories, dim=2), state.S, "state.S")


@each_op
@examples(60)
@given(data=st.data())
def test_outputs_are_linear_in_the_values(op, data):
    case = data.draw(cases(op, with_state=False))
    backend = data.draw(backends_for(op, steps=True))
    other = weights_like(case.inputs["v"], 3)
    parts = [call(case, backend, inputs={**case.inputs, "v": v}) for v in (case.inputs["v"], other)]
    mixed = {**case.inputs, "v": 2 * case.inputs["v"] - 3 * other}
    o, state = call(case, backend, inputs=mixed)
    scale = 2 * parts[0][0].abs().max() + 3 * parts[1][0].abs().max()
    assert (o - (2 * parts[0][0] - 3 * parts[1][0])).abs().max() <= TOLERANCE * scale
    scale = 2 * parts[0][1].S.abs().max() + 3 * parts[1][1].S.abs().max()
    assert (state.S - (2 * parts[0][1].S - 3 * parts[1][1].S)).abs().max() <= TOLERANCE * scale


@each_op
@examples(40)
@given(data=st.data())
def test_the_layout_in_memory_does_not_matter(op, data):
    case = data.draw(cases(op))
    backend = data.draw(backends_for(op, steps=True))
    o, state = call(case, backend)

    def strided(x):
        return x if x.ndim < 2 else x.transpose(1, -1).contiguous().transpose(1, -1)

    got, got_state = call(
        case,
        backend,
        inputs={name: strided(x) for name, x in case.inputs.items()},
        state=map_state(case.state, strided),
    )
    near(got, o, "o")
    near_state(op, got_state, state)


# --- Large calls ------------------------------------------------------------------------------------------------------
# Far beyond any number of tokens or rows that a form would take in one go.


def large_case(op, batch, time, rows=None):
    normal = normals(0)
    inputs = random_inputs(op, normal, batch, time, 2, 4, 3)
    options = {"refresh_every": 20, "refresh": 1e-2} if op == "vla" else {}
    return Case(op, inputs, random_state(op, normal, batch if rows is None else rows, 2, 4, 3), options)


def outcome(case, backend, weights, **changes):
    copy, leaves = leaves_of(case)
    o, state = call(copy, backend, **changes)
    loss = (o * weights).sum() + sum(getattr(state, n).square().sum() for n in FLOATS[case.op])
    return o, state, gradients(loss, leaves)


@pytest.mark.parametrize(("batch", "time"), [(60, 70), (1, 2500), (700, 5)])
@pytest.mark.parametrize("backend", [{"backend": "chunk"}, {"backend": "chunk", "chunk_size": 7}], ids=str)
@each_op
def test_large_batches_and_long_sequences(op, backend, batch, time):
    case = large_case(op, batch, time)
    weights = weights_like(case.inputs["v"], 1)
    o, state, grads = outcome(case, {"backend": "reference"}, weights)
    got_o, got_state, got_grads = outcome(case, backend, weights)
    near(got_o, o, "o")
    near_state(op, got_state, state)
    near_gradients(got_grads, grads)


@pytest.mark.parametrize("backend", [{"backend": "chunk"}, {"backend": "chunk", "chunk_size": 7}], ids=str)
@each_op
def test_many_packed_sequences(op, backend):
    lengths = [(37 * i) % 151 * (i % 5 > 0) for i in range(70)]
    offsets = [0, *itertools.accumulate(lengths)]
    case = large_case(op, 1, sum(lengths), rows=len(lengths))
    weights = weights_like(case.inputs["v"], 1)
    o, state, grads = outcome(case, backend, weights, cu_seqlens=torch.tensor(offsets))
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        part = {name: x[:, begin:end] for name, x in case.inputs.items()}
        alone = Case(op, part, map_state(case.state, lambda x, i=i: x[i : i + 1]), case.options)
        one_o, one_state, one_grads = outcome(alone, {"backend": "auto"}, weights[:, begin:end])
        near(o[:, begin:end], one_o, f"o of {i}")
        near_state(op, map_state(state, lambda x, i=i: x[i : i + 1]), one_state)
        near_gradients(
            {n: x[:, begin:end] if n in case.inputs else x[i : i + 1] for n, x in grads.items()},
            one_grads,
        )
