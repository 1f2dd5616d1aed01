"""With gain "raw" and u = k, VLA is recursive least squares: the state is the ridge-regression solution."""

import numpy as np
import pytest
import scipy.linalg
import torch

import varla
from tests.ops.cases import randn


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("lambda0", [0.1, 2.5])
@pytest.mark.parametrize("T", [3, 40, 300])
def test_raw_gain_with_u_equal_to_k_solves_ridge_regression(backend, lambda0, T):
    H, D, Dv = 2, 7, 4
    k, v = randn(1, T, H, D, seed=0), randn(1, T, H, Dv, seed=1)
    _, state = varla.vla(
        k, k, v, k, lambda0=lambda0, gain="raw", penalty_scale=1.0, refresh_every=None, feature_map="identity",
        return_state=True, backend=backend,
    )  # fmt: skip
    for h in range(H):
        K, V = k[0, :, h].numpy(), v[0, :, h].numpy()
        K = K / np.linalg.norm(K, axis=1, keepdims=True)
        normal = K.T @ K + lambda0 * np.eye(D)
        S = scipy.linalg.solve(normal, K.T @ V, assume_a="pos").T
        np.testing.assert_allclose(state.S[0, h].numpy(), S, rtol=0, atol=1e-10 * np.abs(S).max())
        A = np.linalg.inv(normal)
        np.testing.assert_allclose(state.A[0, h].numpy(), A, rtol=0, atol=1e-10 * np.abs(A).max())


def test_the_state_minimises_the_penalised_error():
    """The same, without a solver: any other S has a larger objective."""
    T, D, Dv, lambda0 = 25, 5, 3, 0.3
    k, v = randn(1, T, 1, D, seed=0), randn(1, T, 1, Dv, seed=1)
    _, state = varla.vla(
        k, k, v, k, lambda0=lambda0, gain="raw", penalty_scale=1.0, refresh_every=None, feature_map="identity",
        return_state=True,
    )  # fmt: skip
    K = k[0, :, 0] / k[0, :, 0].norm(dim=-1, keepdim=True)

    def objective(S):
        return (v[0, :, 0] - K @ S.mT).square().sum() + lambda0 * S.square().sum()

    best = objective(state.S[0, 0])
    for seed in range(20):
        assert objective(state.S[0, 0] + 1e-3 * randn(Dv, D, seed=seed)) > best


@pytest.mark.parametrize(("gain", "recalls"), [("projection", True), ("unit", False), ("raw", False)])
def test_only_the_projection_gain_recalls_the_newest_pair(gain, recalls):
    """Proposition 3 needs k . alpha = 1, which unit length does not give (erratum E4)."""
    k, v, u = (randn(1, 30, 1, 6, seed=i) for i in range(3))
    o = varla.vla(k, k, v, u, gain=gain, feature_map="identity", normalizer=False, backend="chunk")
    reads = o / k.norm(dim=-1, keepdim=True)  # S_t k_t with the unit key
    assert torch.allclose(reads, v, rtol=0, atol=1e-12) == recalls
