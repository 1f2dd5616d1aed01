"""`varla.directions`: its forms agree in float64, and with `varla.memory` it is `varla.vla`."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch

import varla
from tests.ops.cases import assert_same, randn, vla_inputs, vla_state, with_gradients
from varla.ops.chunk import op as chunk_op

LENGTHS = (1, 19, 20, 21, 67, 133)
CHUNK_SIZES = (None, 1, 7, 20, 64, 200)
B, H, D = 2, 2, 5
OPTIONS = {
    "paper": {},
    "projection": {"gain": "projection"},
    "raw": {"gain": "raw"},
    "no refresh": {"refresh_every": None},
    "refresh of size zero": {"refresh": 0.0},
    "refresh each token": {"refresh_every": 1, "refresh": 0.02},
    "projection, odd refresh": {"gain": "projection", "refresh_every": 7, "refresh": 0.1},
    "raw, odd refresh": {"gain": "raw", "refresh_every": 3, "refresh": 0.05},
    "unit penalty": {"penalty_scale": 1.0},
    "keys as they are": {"normalize_key": False},
    "keys as they are, raw": {"normalize_key": False, "gain": "raw", "penalty_scale": 0.3},
    "A fixed": {"update_penalty": False},
    "A fixed, projection": {"update_penalty": False, "gain": "projection"},
    "identity": {"feature_map": "identity"},
    "identity, raw": {"feature_map": "identity", "gain": "raw", "normalize_key": False},
}
GAINS = ("unit", "projection", "raw")


def make(T, rows=B, batch=B, heads=H, dim=D):
    """k, u, and a state in which every row has seen another number of tokens."""
    state = vla_state(B=rows, H=heads, D=dim)
    return vla_inputs(T, B=batch, H=heads, D=dim)[1::2], varla.DirectionState(state.A, state.t)


def row(state, i):
    return state.of(x[i : i + 1] for x in state.tensors().values())


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("T", LENGTHS)
def test_chunks_equal_the_reference(T, name):
    inputs, state = make(T)
    wanted = with_gradients(varla.directions, inputs, state, backend="reference", **OPTIONS[name])
    for chunk_size in CHUNK_SIZES:
        options = {**OPTIONS[name], "backend": "chunk", "chunk_size": chunk_size}
        assert_same(with_gradients(varla.directions, inputs, state, **options), wanted)


@pytest.mark.parametrize("lambda0", [0.1, 3.0])
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 7), (1, 32)])
def test_chunks_equal_the_reference_from_a_fresh_state(heads, dim, lambda0):
    inputs, _ = make(67, heads=heads, dim=dim)
    options = {"lambda0": lambda0}
    wanted = with_gradients(varla.directions, inputs, None, backend="reference", **options)
    for backend in ("chunk", "auto"):
        assert_same(with_gradients(varla.directions, inputs, None, backend=backend, **options), wanted)


@pytest.mark.parametrize("budget", [1, 30, 300])
def test_segments_do_not_change_the_result(monkeypatch, budget):
    inputs, state = make(67)
    wanted = with_gradients(varla.directions, inputs, state, backend="reference")
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    assert_same(with_gradients(varla.directions, inputs, state, backend="chunk", chunk_size=5), wanted)


@pytest.mark.parametrize("gain", GAINS)
def test_gradcheck(gain):
    (k, u), state = make(9, rows=1, batch=1, heads=1, dim=3)

    def call(k, u, A):
        start = varla.DirectionState(A, state.t)
        options = {"refresh_every": 4, "refresh": 0.05, "backend": "chunk", "chunk_size": 4, "gain": gain}
        a, final = varla.directions(k, u, initial_state=start, return_state=True, **options)
        return a, final.A

    assert torch.autograd.gradcheck(call, [x.clone().requires_grad_() for x in (k, u, state.A)])


@pytest.mark.parametrize("budget", [1, 4096])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_packed_sequences_behave_as_if_alone(monkeypatch, backend, budget):
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    lengths = [20, 0, 41, 1, 67, 3, 0]
    inputs, state = make(sum(lengths), rows=len(lengths), batch=1)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)

    def alone(k, u, initial_state, return_state):
        found = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            start = row(initial_state, i)
            piece = (k[:, begin:end], u[:, begin:end])
            found.append(varla.directions(*piece, initial_state=start, return_state=True, backend="reference"))
        states = zip(*(final.tensors().values() for _, final in found), strict=True)
        return torch.cat([a for a, _ in found], 1), varla.DirectionState.of(map(torch.cat, states))

    got = with_gradients(varla.directions, inputs, state, backend=backend, cu_seqlens=cu_seqlens)
    assert_same(got, with_gradients(alone, inputs, state))


@pytest.mark.parametrize("gain", GAINS)
def test_it_goes_on_from_a_state_in_pieces_of_any_form(gain):
    inputs, state = make(67)
    options = {"gain": gain, "refresh_every": 7}
    forms = ("auto", "chunk", "auto", "chunk", "reference")

    def in_pieces(k, u, initial_state, return_state):
        found = []
        for (begin, end), backend in zip(pairwise((0, 1, 20, 20, 41, 67)), forms, strict=True):
            piece = (k[:, begin:end], u[:, begin:end])
            a, initial_state = varla.directions(
                *piece, initial_state=initial_state, return_state=True, backend=backend, **options
            )
            found.append(a)
        return torch.cat(found, 1), initial_state

    wanted = with_gradients(varla.directions, inputs, state, backend="reference", **options)
    assert_same(with_gradients(in_pieces, inputs, state), wanted)


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("name", OPTIONS)
def test_with_memory_it_is_vla(name, backend):
    """Output, state and all gradients: `memory` has its scalars in common with `vla`, but for those of `directions`."""
    shared = {key: x for key, x in OPTIONS[name].items() if key in ("feature_map", "normalize_key")}
    # Without positive features the denominator changes sign: a large eps puts tokens on both sides of the clamp.
    shared["eps"] = 0.5 if shared.get("feature_map") == "identity" else 1e-4

    def both(q, k, v, u, initial_state, return_state):
        S, A, z, t = initial_state.tensors().values()
        a, along = varla.directions(
            k, u, initial_state=varla.DirectionState(A, t), return_state=True, backend=backend, **OPTIONS[name]
        )
        o, held = varla.memory(
            q, k, v, a, initial_state=varla.MemoryState(S, z, t), return_state=True, backend=backend, **shared
        )
        assert torch.equal(along.t, held.t)
        return o, varla.VLAState(held.S, along.A, held.z, held.t)

    inputs, state = vla_inputs(67), vla_state()
    wanted = with_gradients(varla.vla, inputs, state, backend="reference", **{**OPTIONS[name], **shared})
    assert_same(with_gradients(both, inputs, state), wanted)


@pytest.mark.parametrize("gain", GAINS)
def test_with_memory_it_is_vla_from_a_fresh_state(gain):
    q, k, v, u = vla_inputs(40)
    o = varla.memory(q, k, v, varla.directions(k, u, gain=gain))
    assert_same({"o": o}, {"o": varla.vla(q, k, v, u, gain=gain)})


# --- What the directions are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_what_each_gain_promises(backend):
    (k, u), _ = make(30)
    raw, unit, projection = (
        varla.directions(k, u, gain=gain, feature_map="identity", backend=backend)
        for gain in ("raw", "unit", "projection")
    )
    one = torch.ones_like(raw[..., 0])
    assert_same({"": unit.norm(dim=-1)}, {"": one})
    assert_same({"": (projection * k / k.norm(dim=-1, keepdim=True)).sum(-1)}, {"": one})
    assert_same({"": unit}, {"": raw / raw.norm(dim=-1, keepdim=True)})


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_raw_directions_are_those_of_the_penalty_matrix_itself(backend):
    """a = (lambda0 I + sum of u u^T)^-1 k, without Sherman-Morrison."""
    (k, u), _ = make(30)
    a = varla.directions(k, u, gain="raw", feature_map="identity", refresh_every=None, backend=backend)
    unit_k, unit_u = k / k.norm(dim=-1, keepdim=True), u / u.norm(dim=-1, keepdim=True)
    penalty = 0.1 * torch.eye(D, dtype=k.dtype) + (unit_u[..., :, None] * unit_u[..., None, :]).cumsum(1) / D
    assert_same({"a": a}, {"a": torch.linalg.solve(penalty, unit_k)})


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("gain", GAINS)
def test_zero_directions_and_keys(gain, backend):
    """A zero u leaves A alone, a zero key has a zero direction, and neither has a gradient."""
    (k, u), state = make(30)
    k[:, 3:5], u[:, 4:7] = 0, 0
    options = {"gain": gain, "feature_map": "identity", "refresh_every": None}
    wanted = with_gradients(varla.directions, [k, u], state, backend="reference", **options)
    got = with_gradients(varla.directions, [k, u], state, backend=backend, **options)
    assert_same(got, wanted)
    assert not got["o"][:, 3:5].any()
    assert not got["d 1"][:, 4:7].any()
    _, final = varla.directions(
        k, torch.zeros_like(u), initial_state=state, return_state=True, backend=backend, **options
    )
    assert torch.equal(final.A, (state.A + state.A.mT) / 2)


# --- Edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "chunk", "auto"])
@pytest.mark.parametrize(("batch", "T"), [(2, 0), (0, 5), (0, 0)])
def test_no_tokens_or_no_rows(batch, T, backend):
    inputs, state = make(T, rows=batch, batch=batch)
    got = with_gradients(varla.directions, inputs, state, backend=backend)
    assert got["o"].shape == (batch, T, H, D)
    if T == 0:
        assert torch.equal(got["A"], state.A)
    assert got["t"].tolist() == [x + T for x in state.t.tolist()]


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_types(dtype, backend):
    inputs, _ = make(30)
    inputs = [x.to(dtype) for x in inputs]
    a, state = varla.directions(*inputs, return_state=True, backend=backend)
    assert type(state) is varla.DirectionState
    assert a.dtype == dtype
    assert state.A.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert state.t.dtype == torch.int64
    # Computed in the precision of the state, and rounded once.
    wide = varla.directions(*(x.to(state.A.dtype) for x in inputs), backend=backend)
    assert torch.equal(a, wide.to(dtype))


def test_autocast_does_not_lower_the_precision_inside():
    inputs = [x.float() for x in make(30)[0]]
    for backend in ("reference", "chunk"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = varla.directions(*inputs, backend=backend)
        assert torch.equal(got, varla.directions(*inputs, backend=backend))


@pytest.mark.parametrize("needed", [(0,), (1,), ()])
def test_gradients_of_some_inputs_alone(needed):
    inputs, state = make(30)
    wanted = with_gradients(varla.directions, inputs, state, backend="reference")
    leaves = [x.clone().requires_grad_(i in needed) for i, x in enumerate(inputs)]
    A = state.A.clone().requires_grad_()
    start = varla.DirectionState(A, state.t)
    a, final = varla.directions(*leaves, initial_state=start, return_state=True, backend="chunk")
    loss = (a * randn(*a.shape, seed=200)).sum() + (final.A * randn(*A.shape, seed=201)).sum()
    loss.backward()
    assert_same({"": A.grad}, {"": wanted["d A"]})
    for i, x in enumerate(leaves):
        assert (x.grad is not None) == (i in needed)
        if i in needed:
            assert_same({"": x.grad}, {"": wanted[f"d {i}"]})


def test_inputs_of_any_stride_are_read_right():
    (k, u), state = make(30)
    wanted = with_gradients(varla.directions, [k, u], state, backend="chunk")
    assert_same(with_gradients(strided, [k, u], state, backend="chunk"), wanted, tolerance=0)
    once = varla.directions(k[:1].expand_as(k), u[:1].expand_as(u), backend="chunk")
    assert torch.equal(once[0], once[1])
    assert torch.equal(once[:1], varla.directions(k[:1], u[:1], backend="chunk"))


def strided(*inputs, **options):
    return varla.directions(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs), **options)


# --- Derivatives of other kinds, compiling ----------------------------------------------------------------------------


def test_double_backward_is_refused():
    (k, u), _ = make(9)
    k.requires_grad_()
    (grad,) = torch.autograd.grad(varla.directions(k, u, backend="chunk").sum(), k, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='chunk'"):
        grad.sum().backward()


def test_forward_mode_is_refused():
    (k, u), _ = make(9)
    with pytest.raises(RuntimeError, match=r"forward-mode derivatives .* use backend='reference'"):
        torch.func.jvp(lambda k: varla.directions(k, u, backend="chunk"), (k,), (torch.ones_like(k),))


def test_fullgraph_compile():
    def model(*inputs, **options):
        a, state = varla.directions(*inputs, **options)
        return 2 * a, state

    inputs, state = make(21)
    wanted = with_gradients(model, inputs, state)
    torch.compiler.reset()
    assert_same(with_gradients(torch.compile(model, fullgraph=True, backend="aot_eager"), inputs, state), wanted)


# --- The state --------------------------------------------------------------------------------------------------------


def test_the_state_is_printed_copied_and_saved(tmp_path):
    _, state = make(1)
    bytes_ = 8 * (B * H * D * D + B)
    shown = f"DirectionState(A float64 [{B}, {H}, {D}, {D}], t int64 [{B}]; cpu, {bytes_:,} bytes)"
    state.save(tmp_path / "state")
    for found in (
        state.clone(),
        copy.deepcopy(state),
        pickle.loads(pickle.dumps(state)),
        varla.DirectionState.load(tmp_path / "state"),
    ):
        assert repr(found) == shown
        assert torch.equal(found.A, state.A)
        assert torch.equal(found.t, state.t)
    for other in (varla.MemoryState, varla.VLAState):
        with pytest.raises(ValueError, match=f"does not hold a {other.__name__}"):
            other.load(tmp_path / "state")


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"refresh_evry": 3}, TypeError, "unknown option 'refresh_evry'; did you mean 'refresh_every'"),
        ({"eps": 1e-3}, TypeError, "unknown option 'eps'"),
        ({"normalizer": False}, TypeError, "unknown option 'normalizer'"),
        ({"gain": "units"}, ValueError, "gain must be one of 'unit', 'projection', 'raw', got 'units'"),
        ({"gain": ["unit"]}, ValueError, "gain must be one of"),
        ({"feature_map": "relu"}, ValueError, "feature_map must be one of 'elu1', 'silu', 'identity', got 'relu'"),
        ({"lambda0": 0}, ValueError, "lambda0 must be greater than 0, got 0"),
        ({"refresh_every": 0}, ValueError, r"refresh_every must be at least 1, or None \(no refresh\), got 0"),
        ({"refresh": -1.0}, ValueError, "refresh must be at least 0, got -1.0"),
        ({"penalty_scale": 0.0}, ValueError, "penalty_scale must be greater than 0, got 0.0"),
        ({"normalize_key": 1}, TypeError, "normalize_key must be"),
        ({"update_penalty": None}, TypeError, "update_penalty must be"),
        (
            {"backend": "chunks"},
            ValueError,
            "backend must be one of 'auto', 'reference', 'chunk', 'triton', got 'chunks'",
        ),
        ({"backend": "reference", "chunk_size": 3}, ValueError, "backend='reference' has no chunks"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"return_state": 1}, TypeError, "return_state must be"),
        ({"cu_seqlens": torch.tensor([0, 9])}, ValueError, "B must be 1, got 2"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    (k, u), _ = make(9)
    with pytest.raises(error, match=message):
        varla.directions(k, u, **options)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": randn(2, 9, 2, seed=0)}, ValueError, r"k must have 4 dimensions \[B, T, H, D\], got \[2, 9, 2\]"),
        ({"u": randn(2, 9, 2, 4, seed=0)}, ValueError, "u must have shape .* with D = 5 as in k"),
        ({"u": randn(2, 8, 2, 5, seed=0)}, ValueError, "u must have shape .* with T = 9 as in k"),
        ({"u": randn(2, 9, 2, 5, seed=0).float()}, TypeError, "u must have the same dtype as k"),
        ({"u": None}, TypeError, "u must be a tensor, got NoneType"),
        ({"k": torch.ones(2, 9, 2, 5, dtype=torch.int64)}, TypeError, "k must be float16, .*, got int64"),
        ({"k": randn(2, 9, 2, 0, seed=0), "u": randn(2, 9, 2, 0, seed=0)}, ValueError, "k must have D >= 1"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(change, error, message):
    (k, u), _ = make(9)
    with pytest.raises(error, match=message):
        varla.directions(**{"k": k, "u": u, **change})


def test_wrong_states_are_named():
    (k, u), state = make(9)
    with pytest.raises(TypeError, match="initial_state must be a DirectionState or None, got VLAState"):
        varla.directions(k, u, initial_state=vla_state())
    with pytest.raises(ValueError, match=r"initial_state.A must have shape \[B, H, D, D\] = \[2, 2, 5, 5\]"):
        varla.directions(k, u, initial_state=varla.DirectionState(state.A[..., :4, :4], state.t))
    with pytest.raises(TypeError, match=r"initial_state\.A must be float64 for float64 inputs, got float32"):
        varla.directions(k, u, initial_state=varla.DirectionState(state.A.float(), state.t))
    with pytest.raises(TypeError, match=r"initial_state\.t must be int64, got int32"):
        varla.directions(k, u, initial_state=varla.DirectionState(state.A, state.t.int()))
    with pytest.raises(torch.linalg.LinAlgError, match="A is not positive definite"):
        varla.directions(k, u, initial_state=varla.DirectionState(-100 * state.A, state.t), backend="chunk")
