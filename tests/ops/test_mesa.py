"""`varla.mesa`: ridge regression on the context, solved for every query; its forms, its state, what is refused."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
import torch
from torch.nn.functional import logsigmoid, normalize

import varla
from tests.ops.cases import assert_same, error, randn, with_gradients

B, H, D, DV = 2, 2, 5, 4
FORMS = [{"backend": "reference"}, {"backend": "chunk"}, {"backend": "chunk", "chunk_size": 7}, {"backend": "auto"}]


def make(T, batch=B, rows=B):
    """Inputs by name, and a state in which every row has seen another number of tokens."""
    q, k, v = (randn(batch, T, H, width, seed=i) for i, width in enumerate((D, D, DV)))
    beta, decay = randn(batch, T, H, seed=50).sigmoid(), 0.1 * logsigmoid(randn(batch, T, H, seed=51))
    root = randn(rows, H, D, D, seed=52)
    A = root @ root.mT / D + torch.eye(D, dtype=root.dtype)
    S, f = randn(rows, H, DV, D, seed=53), -randn(rows, H, seed=54).abs()
    inputs = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay}
    return inputs, varla.MesaState(S, A, f, torch.arange(rows) * 14 + 3)


def outcome(inputs, state=None, function=varla.mesa, **options):
    def call(*tensors, **keywords):
        return function(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, list(inputs.values()), state, **options)


def explicit(q, k, v, beta, decay, lambda0, beat):
    """(o, S, A, log C): the matrices themselves, one solve for every token."""
    batch, T, heads, dim = k.shape
    eye = torch.eye(dim, dtype=k.dtype)
    lam, C = lambda0 * eye.expand(batch, heads, dim, dim), torch.ones(batch, heads, 1, 1, dtype=k.dtype)
    G, outputs = v.new_zeros(batch, heads, v.shape[-1], dim), []
    for t in range(T):
        if t > 0 and t % beat == 0:
            lam, C = lam + lambda0 * (1 - C) * eye, torch.ones_like(C)
        d, weight = decay[:, t, :, None, None].exp(), beta[:, t, :, None, None]
        C, lam = d * C, d * lam + weight * k[:, t, :, :, None] * k[:, t, :, None, :]
        G = d * G + weight * v[:, t, :, :, None] * k[:, t, :, None, :]
        outputs.append((G @ torch.linalg.solve(lam, q[:, t][..., None]))[..., 0])
    return torch.stack(outputs, 1), G, torch.linalg.inv(lam), C[..., 0, 0].log()


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("beat", [1, 7, 20, 64])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_it_solves_for_every_query(form, beat, normalized):
    inputs, _ = make(133)
    options = {"lambda0": 0.7, "beat": beat, "normalize_query": normalized, "normalize_key": normalized}
    o, state = varla.mesa(**inputs, return_state=True, **form, **options)
    q, k, v, beta, decay = inputs.values()
    if normalized:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    wanted = explicit(q, k, v, beta, decay, 0.7, beat)
    assert_same({"o": o, "S": state.S, "A": state.A, "f": state.f}, dict(zip("oSAf", wanted, strict=True)))


@pytest.mark.parametrize("form", FORMS[:2], ids=str)
@pytest.mark.parametrize("lambda0", [0.1, 2.5])
def test_without_decay_it_is_ridge_regression(lambda0, form):
    inputs, _ = make(90)
    del inputs["decay"]
    o, state = varla.mesa(**inputs, lambda0=lambda0, return_state=True, **form)
    q, k, v, beta = inputs.values()
    for b, h, t in ((0, 0, 0), (1, 0, 3), (0, 1, 63), (1, 1, 64), (0, 0, 89)):
        K, V = normalize(k[b, : t + 1, h], dim=-1).numpy(), v[b, : t + 1, h].numpy()
        root = beta[b, : t + 1, h].sqrt().numpy()[:, None]
        # The penalty as D more pairs, and an ordinary least-squares solver.
        rows = np.concatenate((root * K, np.sqrt(lambda0) * np.eye(D)))
        W, *_ = scipy.linalg.lstsq(rows, np.concatenate((root * V, np.zeros((D, DV)))))
        wanted = normalize(q[b, t, h], dim=-1).numpy() @ W
        np.testing.assert_allclose(o[b, t, h].numpy(), wanted, rtol=0, atol=1e-12 * np.abs(W).max())
    assert not state.f.any()


@pytest.mark.parametrize("form", FORMS[1:], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"beat": 20, "feature_map": "silu", "scale": None}, {"normalize_key": False}], ids=str
)
@pytest.mark.parametrize("T", [1, 67, 133])
def test_forms_agree(T, options, form):
    inputs, state = make(T)
    wanted = outcome(inputs, state, backend="reference", **options)
    assert_same(outcome(inputs, state, **form, **options), wanted)


def test_steps_and_pieces():
    inputs, state = make(67)

    def in_pieces(initial_state, return_state, **given):
        found = []
        for begin, end in pairwise((0, 3, 17, 18, 50, 67)):
            piece = {name: x[:, begin:end] for name, x in given.items()}
            o, initial_state = varla.mesa(**piece, initial_state=initial_state, return_state=True, beat=20)
            found.append(o)
        return torch.cat(found, 1), initial_state

    def in_steps(initial_state, return_state, **given):
        found = []
        for i in range(67):
            token = {name: x[:, i] for name, x in given.items()}
            o, initial_state = varla.mesa_step(**token, state=initial_state, beat=20)
            found.append(o)
        return torch.stack(found, 1), initial_state

    wanted = outcome(inputs, state, backend="reference", beat=20)
    assert_same(outcome(inputs, state, in_pieces), wanted)
    assert_same(outcome(inputs, state, in_steps), wanted)


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_packed_sequences_behave_as_if_alone(form):
    lengths = [20, 0, 41, 1, 67]
    inputs, state = make(sum(lengths), batch=1, rows=len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)

    def alone(initial_state, return_state, **given):
        found = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            piece = {name: x[:, begin:end] for name, x in given.items()}
            start = initial_state.map(lambda x, i=i: x[i : i + 1])
            found.append(varla.mesa(**piece, initial_state=start, return_state=True, backend="reference", beat=15))
        states = zip(*(final.tensors().values() for _, final in found), strict=True)
        return torch.cat([o for o, _ in found], 1), varla.MesaState.of(map(torch.cat, states))

    assert_same(outcome(inputs, state, cu_seqlens=cu_seqlens, beat=15, **form), outcome(inputs, state, alone))


def test_a_pair_is_recalled():
    """With a weak prior, a query equal to a key returns its value: D pairs are interpolated."""
    _, k, v, _, _ = make(D)[0].values()
    k, v = k[:1, :, :1], v[:1, :, :1]
    q = k[:, :1].expand(-1, D, -1, -1)
    o = varla.mesa(q, k, v, torch.ones(1, D, 1, dtype=k.dtype), lambda0=1e-9)
    assert error(o[:, -1], v[:, 0]) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_types_and_precision(dtype):
    inputs = {name: x.to(dtype) for name, x in make(300)[0].items()}
    wanted, after = varla.mesa(**{name: x.double() for name, x in inputs.items()}, beat=32, return_state=True)
    o, state = varla.mesa(**inputs, beat=32, return_state=True)
    assert o.dtype == dtype
    assert {x.dtype for name, x in state.tensors().items() if name != "t"} == {torch.float32}
    assert error(o, wanted) <= (2e-2 if dtype == torch.bfloat16 else 1e-5)
    assert error(state.A, after.A) <= (2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_no_tokens():
    inputs, state = make(0)
    got = outcome(inputs, state)
    assert got["o"].shape == (B, 0, H, DV)
    assert torch.equal(got["S"], state.S)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lambda": 1.0}, TypeError, "unknown option 'lambda'; did you mean 'lambda0'"),
        ({"lambda0": 0.0}, ValueError, "lambda0 must be greater than 0"),
        ({"beat": 0}, ValueError, "beat must be at least 1"),
        ({"normalize_key": 1}, TypeError, "normalize_key must be"),
        ({"backend": "triton"}, ValueError, "backend must be one of 'auto', 'reference', 'chunk', got 'triton'"),
        ({"decay": torch.ones(B, 9, H).double()}, ValueError, "decay must be at most 0"),
        ({"beta": -torch.ones(B, 9, H).double()}, ValueError, "beta must be 0 to 2"),
        ({"decay": torch.full((B, 9, H), -torch.inf).double()}, ValueError, "decay must be finite"),
        ({"decay": torch.full((B, 9, H), -4.0).double()}, ValueError, "forgetting leaves .* of the prior lambda0 = 1"),
        ({"initial_state": varla.DeltaRuleState(torch.ones(1), torch.ones(1))}, TypeError, "must be a MesaState"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(options, error, message):
    inputs, _ = make(9)
    with pytest.raises(error, match=message):
        varla.mesa(**{**inputs, **options})


def test_wrong_arguments_of_a_step_are_named():
    token = {name: x[:, 0] for name, x in make(1)[0].items()}
    with pytest.raises(TypeError, match="unknown option 'backend'"):
        varla.mesa_step(**token, backend="chunk")
    with pytest.raises(TypeError, match="state must be a MesaState or None, got int"):
        varla.mesa_step(**token, state=3)
