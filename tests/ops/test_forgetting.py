"""Forgetting in A: what it computes, and that its forms agree in float64."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import logsigmoid, normalize, softplus

import varla
from tests.ops.cases import assert_same, error, randn, vla_inputs, vla_state, with_gradients
from varla.ops.chunk import op as chunk_op

B, H, D, DV = 2, 2, 5, 4
CHUNK_SIZES = (None, 1, 7, 20, 64)
BEATS = (1, 7, 20, 64)
GAINS = ("unit", "projection", "raw")
GATED = {"feature_map": "silu", "normalize_query": True, "scale": None, "normalizer": False}
NAMES = {
    varla.directions: ("k", "u", "strength", "forget"),
    varla.vla: (*"qkvu", "beta", "decay", "strength", "forget"),
}


def make(T, function=varla.directions, rows=B, batch=B, without=()):
    """Inputs by name, and a state in which every row has seen another number of tokens and forgotten another share."""
    q, k, v, u = vla_inputs(T, batch, H, D, DV)
    gates = {
        "beta": 2 * randn(batch, T, H, seed=50).sigmoid(),
        "decay": logsigmoid(3 * randn(batch, T, H, seed=51)),
        "strength": softplus(randn(batch, T, H, seed=52)),
        "forget": 0.1 * logsigmoid(randn(batch, T, H, seed=53)),
    }
    every = {"q": q, "k": k, "v": v, "u": u, **gates}
    held = {**vla_state(rows, H, D, DV).tensors(), "f": -randn(rows, H, seed=54).abs()}
    kind = varla.ForgettingState if function is varla.vla else varla.ForgettingDirectionState
    inputs = {name: every[name] for name in NAMES[function] if name not in without}
    return inputs, kind.of(held[name] for name in kind.LAYOUT)


def outcome(inputs, state=None, function=varla.directions, **options):
    def call(*tensors, **keywords):
        return function(**dict(zip(inputs, tensors, strict=True)), refresh_every=None, **keywords)

    found = with_gradients(call, list(inputs.values()), state, **options)
    return {name if not name[2:].isdigit() else f"d {[*inputs][int(name[2:])]}": x for name, x in found.items()}


# --- What it computes -------------------------------------------------------------------------------------------------


def explicit(k, u, strength, forget, lambda0, beat):
    """(A_t k_t [B, T, H, D], A, log C) from the matrices lambda themselves, inverted at every token."""
    batch, T, heads, dim = k.shape
    eye = torch.eye(dim, dtype=k.dtype)
    lam, C = lambda0 * eye.expand(batch, heads, dim, dim), torch.ones(batch, heads, dtype=k.dtype)
    found = []
    for t in range(T):
        if t > 0 and t % beat == 0:
            lam, C = lam + lambda0 * (1 - C)[..., None, None] * eye, torch.ones_like(C)
        c, unit_u = forget[:, t].exp(), normalize(u[:, t], dim=-1)
        C, lam = c * C, c[..., None, None] * lam
        lam = lam + strength[:, t][..., None, None] * unit_u[..., :, None] * unit_u[..., None, :]
        found.append(torch.linalg.solve(lam, normalize(k[:, t], dim=-1)))
    return torch.stack(found, 1), torch.linalg.inv(lam), C.log()


@pytest.mark.parametrize("beat", [*BEATS, 1000])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_it_is_the_inverse_of_the_matrices_themselves(backend, beat):
    inputs, _ = make(133)
    options = {"gain": "raw", "feature_map": "identity", "refresh_every": None, "lambda0": 0.3, "beat": beat}
    a, state = varla.directions(**inputs, return_state=True, backend=backend, **options)
    assert_same(
        {"a": a, "A": state.A, "f": state.f},
        dict(zip("aAf", explicit(*inputs.values(), 0.3, beat), strict=True)),
        1e-11,
    )


@pytest.mark.parametrize("form", [{"backend": "reference"}, {"backend": "chunk"}], ids=str)
@pytest.mark.parametrize("function", [varla.directions, varla.vla])
def test_forgetting_nothing_changes_nothing(function, form):
    inputs, state = make(67, function)
    inputs["forget"].zero_()
    state.f.zero_()
    kept = {name: x for name, x in state.tensors().items() if name != "f"}
    plain = (varla.VLAState if function is varla.vla else varla.DirectionState)(**kept)
    got = outcome(inputs, state, function, beat=20, **form)
    del inputs["forget"]
    wanted = outcome(inputs, plain, function, **form)
    # The random loss has other numbers for f, t and what comes after.
    assert_same({name: got[name] for name in ("o", *kept)}, {name: wanted[name] for name in ("o", *kept)})


def test_two_operators_make_vla():
    inputs, state = make(67, varla.vla)
    q, k, v, u, beta, decay, strength, forget = inputs.values()
    S, A, z, f, t = state.tensors().values()
    along = varla.ForgettingDirectionState(A, f, t)
    a = varla.directions(
        k, u, strength=strength, forget=forget, feature_map="silu", refresh_every=None, initial_state=along
    )
    o = varla.memory(q, k, v, a, beta=beta, decay=decay, initial_state=varla.MemoryState(S, z, t), **GATED)
    assert_same({"o": o}, {"o": varla.vla(**inputs, initial_state=state, refresh_every=None, **GATED)})


# --- Forms agree ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beat", BEATS)
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("T", [1, 20, 67, 133])
def test_chunks_equal_the_reference(T, gain, beat):
    inputs, state = make(T)
    options = {"gain": gain, "beat": beat, "lambda0": 0.5}
    wanted = outcome(inputs, state, backend="reference", **options)
    for chunk_size in CHUNK_SIZES:
        assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted)


@pytest.mark.parametrize("without", [(), ("strength",), ("beta", "decay"), ("beta", "decay", "strength")], ids=str)
@pytest.mark.parametrize("options", [GATED, {}, {"gain": "projection", "penalty_scale": None}], ids=str)
def test_chunks_of_vla_equal_the_reference(options, without):
    inputs, state = make(67, varla.vla, without=without)
    wanted = outcome(inputs, state, varla.vla, backend="reference", beat=20, **options)
    assert all(x.isfinite().all() for x in wanted.values())
    for chunk_size in CHUNK_SIZES:
        got = outcome(inputs, state, varla.vla, backend="chunk", chunk_size=chunk_size, beat=20, **options)
        assert_same(got, wanted)


@pytest.mark.parametrize("budget", [1, 30, 300])
def test_segments_do_not_change_the_result(monkeypatch, budget):
    inputs, state = make(67)
    wanted = outcome(inputs, state, backend="reference", beat=20)
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    assert_same(outcome(inputs, state, backend="chunk", chunk_size=5, beat=20), wanted)


@pytest.mark.parametrize("ends", ["strength 0", "some strengths 0", "forget 0", "aligned"])
def test_the_ends_of_the_gates(ends):
    inputs, state = make(67)
    if ends == "strength 0":
        inputs["strength"].zero_()
    elif ends == "some strengths 0":
        inputs["strength"][:, ::2] = 0
    elif ends == "forget 0":
        inputs["forget"].zero_()
    else:
        state.t.zero_()
    for beat in (7, 64):
        wanted = outcome(inputs, state, backend="reference", beat=beat)
        assert all(x.isfinite().all() for x in wanted.values())
        for chunk_size in (7, 64):
            assert_same(outcome(inputs, state, backend="chunk", chunk_size=chunk_size, beat=beat), wanted)


@pytest.mark.parametrize("beat", BEATS)
def test_strong_forgetting(beat):
    """The error of a chunk grows like 1 / C: it subtracts from the A before the chunk. Here C is down to 1e-8."""
    inputs, state = make(133)
    inputs["forget"] *= 3
    wanted = outcome(inputs, state, backend="reference", beat=beat, lambda0=0.5)
    for chunk_size in (7, 64):
        tolerance = {(7, 64): 1e-10, (64, 64): 1e-7}.get((chunk_size, beat), 1e-12)
        got = outcome(inputs, state, backend="chunk", chunk_size=chunk_size, beat=beat, lambda0=0.5)
        assert_same(got, wanted, tolerance)


@pytest.mark.parametrize("gain", GAINS)
def test_gradcheck(gain):
    inputs, state = make(11, rows=1, batch=1)
    inputs = {name: x[:, :, :1, ..., :3] if x.dim() == 4 else x[:, :, :1] for name, x in inputs.items()}
    A, f = state.A[:, :1, :3, :3], state.f[:, :1]

    def call(*given):
        *tensors, A, f = given
        start = varla.ForgettingDirectionState(A, f, state.t)
        options = {"refresh_every": None, "beat": 4, "backend": "chunk", "chunk_size": 3, "gain": gain}
        a, final = varla.directions(
            **dict(zip(inputs, tensors, strict=True)), initial_state=start, return_state=True, **options
        )
        return a, final.A, final.f

    assert torch.autograd.gradcheck(call, [x.clone().requires_grad_() for x in (*inputs.values(), A, f)])


@pytest.mark.parametrize("budget", [1, 4096])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_packed_sequences_behave_as_if_alone(monkeypatch, backend, budget):
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    lengths = [20, 0, 41, 1, 67, 3, 0]
    inputs, state = make(sum(lengths), varla.vla, rows=len(lengths), batch=1)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)

    def alone(initial_state, return_state, **given):
        found = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            piece = {name: x[:, begin:end] if isinstance(x, torch.Tensor) else x for name, x in given.items()}
            start = initial_state.map(lambda x, i=i: x[i : i + 1])
            found.append(varla.vla(**piece, initial_state=start, return_state=True, backend="reference"))
        states = zip(*(final.tensors().values() for _, final in found), strict=True)
        return torch.cat([o for o, _ in found], 1), varla.ForgettingState.of(map(torch.cat, states))

    got = outcome(inputs, state, varla.vla, backend=backend, cu_seqlens=cu_seqlens, beat=15)
    assert_same(got, outcome(inputs, state, alone, beat=15))


@pytest.mark.parametrize("bounds", [(0, 1, 20, 20, 41, 67), (0, 13, 17, 18, 50, 67), (0, 3, 6, 33, 35, 67)], ids=str)
def test_it_goes_on_from_a_state_in_pieces_of_any_form(bounds):
    """The rows have seen 3 and 17 tokens: cuts fall before, at and after a beat."""
    inputs, state = make(67, varla.vla)
    forms = ("auto", "chunk", "step", "chunk", "reference")

    def in_pieces(initial_state, return_state, **given):
        found = []
        options = {name: given.pop(name) for name in ("beat", "refresh_every")}
        for (begin, end), backend in zip(pairwise(bounds), forms, strict=True):
            if backend == "step":
                for i in range(begin, end):
                    token = {name: x[:, i] for name, x in given.items()}
                    o, initial_state = varla.vla_step(**token, state=initial_state, **options)
                    found.append(o[:, None])
                continue
            piece = {name: x[:, begin:end] for name, x in given.items()}
            o, initial_state = varla.vla(
                **piece, initial_state=initial_state, return_state=True, backend=backend, **options
            )
            found.append(o)
        return torch.cat(found, 1), initial_state

    wanted = outcome(inputs, state, varla.vla, backend="reference", beat=20)
    assert_same(outcome(inputs, state, in_pieces, beat=20), wanted)


def test_steps_equal_the_call_and_can_update_in_place():
    inputs, _ = make(30, varla.vla)
    options = {"refresh_every": None, "beat": 7, **GATED}
    wanted, after = varla.vla(**inputs, return_state=True, backend="reference", **options)
    for inplace in (False, True):
        state, outputs = None, []
        for i in range(30):
            o, state = varla.vla_step(
                **{name: x[:, i] for name, x in inputs.items()}, state=state, inplace=inplace, **options
            )
            outputs.append(o)
        assert_same({"o": torch.stack(outputs, 1), **state.tensors()}, {"o": wanted, **after.tensors()}, 1e-13)


@pytest.mark.parametrize("backend", ["reference", "chunk", "auto"])
@pytest.mark.parametrize(("batch", "T"), [(2, 0), (0, 5), (0, 0)])
def test_no_tokens_or_no_rows(batch, T, backend):
    inputs, state = make(T, varla.vla, rows=batch, batch=batch)
    got = outcome(inputs, state, varla.vla, backend=backend)
    assert got["o"].shape == (batch, T, H, DV)
    if T == 0:
        assert torch.equal(got["f"], state.f)
    assert got["t"].tolist() == [x + T for x in state.t.tolist()]


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row_and_head(bad, backend):
    inputs, state = make(67)
    inputs["u"][0, 30, 1, 2] = bad
    a, final = varla.directions(
        **inputs, initial_state=state, return_state=True, refresh_every=None, beat=20, backend=backend
    )
    assert a[0, 30:, 1].isnan().all()
    assert final.A[0, 1].isnan().all()
    for x in (a[0, :30], a[0, :, 0], a[1], final.A[0, 0], final.A[1]):
        assert x.isfinite().all()


def test_fullgraph_compile():
    def model(*inputs, **options):
        o, state = varla.vla(**dict(zip(NAMES[varla.vla], inputs, strict=True)), refresh_every=None, beat=7, **options)
        return 2 * o, state

    inputs, state = make(21, varla.vla)
    wanted = with_gradients(model, list(inputs.values()), state)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, list(inputs.values()), state), wanted)


def test_transforms_use_the_loop():
    inputs, _ = make(9)
    forget = inputs.pop("forget")
    options = {**inputs, "refresh_every": None, "beat": 4}
    value, slope = torch.func.jvp(
        lambda x: varla.directions(forget=x, **options), (forget,), (torch.ones_like(forget),)
    )
    near = varla.directions(forget=forget - 1e-6, **options)
    assert error((value - near) / 1e-6, slope) <= 1e-4


# --- Precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_float32_keeps_its_digits_over_long_sequences(backend):
    """No long sum is exponentiated, and A stays bounded where nothing excites it: the prior comes back."""
    T = 300 if backend == "reference" else 4096
    inputs, _ = make(T, varla.vla)
    inputs["u"][:, T // 2 :] = inputs["u"][:, :1]  # one direction only: all others are forgotten
    narrow = {name: x.float() for name, x in inputs.items()}
    wide = {name: x.double() for name, x in narrow.items()}
    wanted = outcome(wide, None, varla.vla, backend=backend, beat=32, lambda0=1.0, **GATED)
    got = outcome(narrow, None, varla.vla, backend=backend, beat=32, lambda0=1.0, **GATED)
    assert float(wanted["A"].diagonal(dim1=-2, dim2=-1).max()) < 100  # without the beat, exp(160)
    assert {name: error(got[name], x) for name, x in wanted.items() if not error(got[name], x) <= 1e-4} == {}


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_a_prior_that_is_forgotten_too_far_is_refused(backend):
    inputs, _ = make(70)
    options = {"refresh_every": None, "lambda0": 1.0, "backend": backend}
    inputs = {name: x.float() for name, x in inputs.items()}
    inputs["strength"].fill_(1.0)
    inputs["forget"].fill_(-0.2)  # exp(-6.93) = 0.00098 is the bound: reached after 34 tokens
    with pytest.raises(
        ValueError, match=r"forgetting leaves .* of the prior lambda0 = 1.0 .* float32 needs at least 0.000977"
    ):
        varla.directions(**inputs, **options)
    varla.directions(**{name: x.double() for name, x in inputs.items()}, **options)
    varla.directions(**inputs, beat=34, **options)
    with pytest.raises(ValueError, match="a beat shorter than 35"):
        varla.directions(**inputs, beat=35, **options)
    half = {name: x[:, :20] for name, x in inputs.items()}
    _, state = varla.directions(**half, return_state=True, **options)
    with pytest.raises(ValueError, match="forgetting leaves"):  # the state knows what was forgotten
        varla.directions(**half, initial_state=state, **options)
