"""Trajectories are the operator's own, and the closed form of the spectral norm holds for any two vectors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import varla
from reproduction.items.recurrence import Inputs, draw, spectral_norm, trajectory, transition, unit_norm
from varla.ops.algebra import apply, outer
from varla.ops.features import unit


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 12), st.integers(0, 1000), st.floats(0.01, 30), st.floats(0.01, 30))
def test_closed_form_is_the_largest_singular_value(d, seed, k_length, a_length):
    k, a = unit(draw(seed, (2, d)))[0] * torch.tensor([[k_length], [a_length]], dtype=torch.float64)
    measured = torch.linalg.matrix_norm(transition(k, a), ord=2)
    torch.testing.assert_close(spectral_norm(k, a), measured, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("c", [-1.0, -0.4, 0.0, 0.5, 0.99, 1.0])
def test_for_unit_vectors_it_depends_on_their_product_alone(c):
    k = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    a = torch.tensor([c, math.sqrt(1 - c * c), 0.0], dtype=torch.float64)
    measured = float(torch.linalg.matrix_norm(transition(k, a), ord=2))
    assert unit_norm(c) == pytest.approx(measured, abs=1e-9)
    assert float(spectral_norm(k, a)) == pytest.approx(measured, abs=1e-9)


@pytest.mark.parametrize("penalty", ["root", "unit", "none"])
@pytest.mark.parametrize("form", ["v2", "v3"])
def test_trajectories_are_the_operators(form, penalty):
    d, T, seed = 5, 45, 3
    k, a, A = trajectory(Inputs(d, form, penalty=penalty), T, 1, seed)
    drawn = draw(seed, (T + d, d))
    raw, v = drawn[d:][None, :, None], draw(9, (1, T, 1, d))
    u = apply(drawn[:d], drawn[d:])[None, :, None]
    _, state = varla.vla(
        raw, raw, v, u, gain="unit" if form == "v3" else "raw", normalize_key=form == "v3",
        penalty_scale=1.0 if penalty == "unit" else None, update_penalty=penalty != "none",
        return_state=True, backend="reference",
    )  # fmt: skip
    S = torch.zeros(d, d, dtype=torch.float64)
    for t in range(T):
        S = S + outer(v[0, t, 0] - apply(S, k[t, 0]), a[t, 0])
    torch.testing.assert_close(state.A[0, 0], A[0])
    torch.testing.assert_close(state.S[0, 0], S)


def test_a_row_does_not_depend_on_how_many_there_are():
    many, one = trajectory(Inputs(4), 6, 3, 7), trajectory(Inputs(4), 6, 1, 9)
    torch.testing.assert_close(many[1][:, 2], one[1][:, 0])


@pytest.mark.parametrize(("name", "value"), [("form", "v4"), ("penalty", "some")])
def test_unknown_names_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Inputs(4, **{name: value})
