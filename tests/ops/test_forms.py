"""Every form of vla equals the reference in float64: outputs, final state, and the gradients of inputs and state."""

import pytest
import torch

import varla
from tests.ops.cases import LENGTHS, assert_same, randn, vla_inputs, vla_state, with_gradients
from varla.ops.chunk import op as chunk_op

OPTIONS = {
    "paper": {},
    "projection": {"gain": "projection"},
    "raw": {"gain": "raw"},
    "no refresh": {"refresh_every": None},
    "refresh each token": {"refresh_every": 1, "refresh": 0.02},
    "large refresh": {"refresh_every": 7, "refresh": 0.1},
    "raw, no refresh": {"gain": "raw", "refresh_every": None},
    "projection, large refresh": {"gain": "projection", "refresh_every": 3, "refresh": 0.05},
    "unit penalty": {"penalty_scale": 1.0},
    "no normalizer": {"normalizer": False},
    "no key normalisation": {"normalize_key": False, "penalty_scale": 1.0},
    "A fixed": {"update_penalty": False},
    "A fixed, projection": {"update_penalty": False, "gain": "projection"},
    "large lambda0": {"lambda0": 3.0},
}
# Without positive features the denominator changes sign: a large eps puts tokens on both sides of the clamp.
FEATURES = {"elu1": {"feature_map": "elu1"}, "identity": {"feature_map": "identity", "eps": 0.5}}
FORMS = [
    ("chunk", None),
    ("chunk", 1),
    ("chunk", 7),
    ("chunk", 16),
    ("chunk", 20),
    ("chunk", 64),
    ("chunk", 200),
]


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("T", LENGTHS)
def test_forms_equal_the_reference(T, name, features):
    options = {**OPTIONS[name], **FEATURES[features]}
    inputs, state = vla_inputs(T), vla_state()
    wanted = with_gradients(varla.vla, inputs, state, backend="reference", **options)
    for backend, chunk_size in FORMS:
        got = with_gradients(varla.vla, inputs, state, backend=backend, chunk_size=chunk_size, **options)
        assert_same(got, wanted)


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize(("B", "H", "D", "Dv"), [(1, 1, 2, 1), (1, 3, 8, 3), (3, 1, 3, 8), (2, 2, 32, 32)])
def test_forms_equal_the_reference_from_a_fresh_state(T, B, H, D, Dv):
    inputs = vla_inputs(T, B, H, D, Dv)
    wanted = with_gradients(varla.vla, inputs, None, backend="reference")
    for backend, chunk_size in (("chunk", None), ("chunk", 13), ("auto", None)):
        assert_same(with_gradients(varla.vla, inputs, None, backend=backend, chunk_size=chunk_size), wanted)


@pytest.mark.parametrize("budget", [1, 30, 70, 300])
def test_segments_and_blocks_do_not_change_the_result(monkeypatch, budget):
    """The defaults put small tests into one segment: force several segments, several blocks, and both."""
    inputs, state = vla_inputs(67, B=3), vla_state(B=3)
    wanted = with_gradients(varla.vla, inputs, state, backend="reference")
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    for chunk_size in (5, 16, 64):
        assert_same(with_gradients(varla.vla, inputs, state, backend="chunk", chunk_size=chunk_size), wanted)


@pytest.mark.parametrize("budget", [1, 40, 4096])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_packed_sequences_behave_as_if_alone(monkeypatch, backend, budget):
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    lengths = [20, 0, 41, 1, 67, 3, 0]
    inputs, state = vla_inputs(sum(lengths), B=1), vla_state(B=len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    chunk_size = 16 if backend == "chunk" else None
    got = with_gradients(
        varla.vla, inputs, state, cu_seqlens=cu_seqlens, backend=backend, chunk_size=chunk_size, refresh_every=7
    )
    # The loss that with_gradients differentiates is a sum over sequences: one dense call a sequence gives the same.
    leaves = [x.clone().requires_grad_() for x in inputs]
    start = state.clone()
    starts = [x.requires_grad_() for x in (start.S, start.A, start.z)]
    outputs, finals = [], []
    for i in range(len(lengths)):
        here = slice(int(cu_seqlens[i]), int(cu_seqlens[i + 1]))
        alone = varla.VLAState.of(x[i : i + 1] for x in start.tensors().values())
        o, final = varla.vla(
            *(x[:, here] for x in leaves), initial_state=alone, return_state=True, backend="reference", refresh_every=7
        )
        outputs.append(o)
        finals.append(tuple(final.tensors().values()))
    results = dict(
        zip(("o", "S", "A", "z", "t"), (torch.cat(outputs, 1), *map(torch.cat, zip(*finals, strict=True))), strict=True)
    )
    loss = sum((x * randn(*x.shape, seed=200 + i)).sum() for i, x in enumerate(list(results.values())[:4]))
    grads = torch.autograd.grad(loss, leaves + starts)
    names = ("d 0", "d 1", "d 2", "d 3", "d S", "d A", "d z")
    assert_same(got, {**results, **dict(zip(names, grads, strict=True))})


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("gain", ["unit", "projection", "raw"])
def test_gradcheck(gain, features):
    inputs = [x.requires_grad_() for x in vla_inputs(T=9, B=1, H=1, D=3, Dv=2)]
    state = vla_state(B=1, H=1, D=3, Dv=2)
    memory = [x.requires_grad_() for x in (state.S, state.A, state.z)]

    def call(q, k, v, u, S, A, z):
        o, final = varla.vla(
            q, k, v, u, gain=gain, refresh_every=4, refresh=0.05, backend="chunk", chunk_size=4, return_state=True,
            initial_state=varla.VLAState(S, A, z, state.t), **FEATURES[features]
        )  # fmt: skip
        return o, final.S, final.A, final.z

    assert torch.autograd.gradcheck(call, (*inputs, *memory))


def test_inputs_of_any_stride_are_read_right():
    inputs = vla_inputs(67)
    wanted = with_gradients(varla.vla, inputs, None, backend="chunk")
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    assert_same(with_gradients(varla.vla, strided, None, backend="chunk"), wanted)
    expanded = [x[:1, :, :1].expand_as(x) for x in inputs]
    wanted = varla.vla(*(x.contiguous() for x in expanded), backend="chunk")
    assert torch.equal(varla.vla(*expanded, backend="chunk"), wanted)


@pytest.mark.parametrize("needed", range(4))
def test_gradients_of_some_inputs_only(needed):
    inputs = vla_inputs(33)
    all_of_them = with_gradients(varla.vla, inputs, None, backend="chunk")
    state = None
    some = [x.clone().requires_grad_(i == needed) for i, x in enumerate(inputs)]
    o, state = varla.vla(*some, return_state=True, backend="chunk")
    loss = sum((x * randn(*x.shape, seed=200 + i)).sum() for i, x in enumerate((o, state.S, state.A, state.z)))
    (grad,) = torch.autograd.grad(loss, some[needed])
    assert torch.equal(grad, all_of_them[f"d {needed}"])


def test_step_equals_the_whole():
    inputs = vla_inputs(45)
    wanted, final = varla.vla(*inputs, return_state=True, backend="chunk")
    state, outputs = None, []
    for t in range(45):
        o, state = varla.vla_step(*(x[:, t] for x in inputs), state)
        outputs.append(o)
    assert_same({"o": torch.stack(outputs, 1), **state.tensors()}, {"o": wanted, **final.tensors()})


def test_nothing_is_kept_when_no_gradient_is_needed():
    inputs = vla_inputs(67)
    assert varla.vla(*inputs, backend="chunk").grad_fn is None
    with torch.no_grad():
        assert varla.vla(*(x.requires_grad_() for x in inputs), backend="chunk").grad_fn is None
