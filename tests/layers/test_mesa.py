"""The layer `mesa`: its recurrence from its own projections, and the decay that float32 can hold."""

import pytest
import torch
from torch.nn.functional import normalize, silu

from tests.ops.cases import error, randn
from varla.layers import build


def make(dtype=torch.float64, **options):
    torch.manual_seed(0)
    return build("mesa", d_model=24, n_heads=3, **options).to(dtype)


@pytest.mark.parametrize(
    "options", [{}, {"conv": 4, "value_dim": 5, "bias": False, "lambda0": 0.3, "beat": 4}], ids=str
)
@torch.no_grad()
def test_it_computes_its_recurrence(options):
    layer, x = make(**options), randn(2, 11, 24, seed=1)
    lambda0, beat = options.get("lambda0", 1.0), options.get("beat", 32)
    y = x if layer.conv is None else layer.conv(x)[0]
    q, k, v = (layer.heads(project(y)) for project in (layer.q, layer.k, layer.v))
    q, k = (normalize(silu(each), dim=-1) for each in (q, k))
    beta, d = layer.beta(y), layer.decay(y).exp()
    o = torch.empty_like(v)
    for b in range(2):
        for h in range(3):
            eye = torch.eye(8, dtype=x.dtype)
            lam, G, C = lambda0 * eye, x.new_zeros(layer.value_dim, 8), 1.0
            for t in range(11):
                if t > 0 and t % beat == 0:
                    lam, C = lam + lambda0 * (1 - C) * eye, 1.0
                C, lam = d[b, t, h] * C, d[b, t, h] * lam + beta[b, t, h] * torch.outer(k[b, t, h], k[b, t, h])
                G = d[b, t, h] * G + beta[b, t, h] * torch.outer(v[b, t, h], k[b, t, h])
                o[b, t, h] = G @ torch.linalg.solve(lam, q[b, t, h])
    assert error(layer(x)[0], layer.out(o.flatten(2))) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"negative_eigenvalues": True}, {"lambda0": 0.05, "beat": 8}], ids=str)
def test_decays_are_no_stronger_than_float32_can_hold(options, dtype):
    layer, x = make(dtype, **options), randn(2, 100, 24, seed=1, dtype=dtype)
    layer.decay.bias.data.fill_(50.0)  # closed: all decays are at their lowest
    layer.beta.bias.data.fill_(50.0)
    y, _ = layer(x)
    y.float().square().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match=r"lambda0 must be above 0.00195"):
        make(lambda0=1e-3)
    with pytest.raises(ValueError, match="beat must be at least 1"):
        make(beat=0)
