"""Numerical tests of the paper's propositions: bounded state, exact recovery, reduction to linear attention."""

from typing import Any

import torch
from torch import Tensor

import varla
from reproduction.items.recurrence import Inputs, draw, spectral_norm, trajectory
from varla.ops.algebra import apply, dot, outer
from varla.ops.features import unit


def random_state(d: int, T: int, rows: int, seed: int) -> dict[str, Any]:
    """Norms of S, residuals and the bound over T tokens of random inputs with unit-variance values."""
    k, a, _ = trajectory(Inputs(d, penalty="unit"), T, rows, seed)
    v = torch.stack([draw(20_000 + seed + row, (T, d)) for row in range(rows)], 1)
    S = torch.zeros(rows, d, d, dtype=torch.float64)
    norms, residuals = [], []
    for t in range(T):
        e = v[t] - apply(S, k[t])
        S = S + outer(e, a[t])
        norms.append(torch.linalg.matrix_norm(S))
        residuals.append(e.norm(dim=-1))
    size, error = torch.stack(norms), torch.stack(residuals)
    quarter = T // 4
    return {
        "greatest": size.amax(0).tolist(),
        "most of the bound": float((size / error.cumsum(0)).max()),
        "bound at the end": float(error.sum(0).mean()),
        "residual, last quarter": float((error[-quarter:] / v[-quarter:].norm(dim=-1)).mean()),
        "third quarter": float(size[2 * quarter : 3 * quarter].mean()),
        "last quarter": float(size[-quarter:].mean()),
    }


def depleted(s: float, T: int, refresh_every: int | None, d: int = 8, first: int = 20_000) -> dict[str, Any]:
    """A counter-example to a uniform bound on S: |v| = 1, and a key with a small component s off a depleted axis.

    First, `first` tokens with u = e1 and zero values deplete A along e1; S stays zero. Then the key
    sqrt(1 - s^2) e1 + s e2 is repeated with one value and u = e1. Now a is almost e2 and c = k.a is about s. Each
    repetition adds 1 - c times what the one before added, so |S| approaches |v| / c.
    """
    e = torch.eye(d, dtype=torch.float64)
    key = (1 - s * s) ** 0.5 * e[0] + s * e[1]
    k = torch.stack([e[0]] * first + [key] * T)[None, :, None]
    u = e[0].expand(1, first + T, 1, d)
    v = torch.stack([0 * key] * first + [e[2]] * T)[None, :, None]
    looks = sorted({int(T * share) for share in (0.01, 0.03, 0.1, 0.3, 1.0)})
    found: dict[str, Any] = {"t": looks, "|S|": [], "bound": 1 / s}
    state: Any = None
    done = 0
    for end in [0, *looks]:
        piece = slice(done, first + end)
        _, state = varla.vla(
            k[:, piece], k[:, piece], v[:, piece], u[:, piece],
            feature_map="identity", penalty_scale=1.0, refresh_every=refresh_every,
            initial_state=state, return_state=True,
        )  # fmt: skip
        done = first + end
        if end:
            found["|S|"].append(float(torch.linalg.matrix_norm(state.S)))
    A = state.A[0, 0]
    found["k.a"] = float(dot(key, unit(A @ key)[0]))
    return found


def recovery(
    n: int, d: int, rows: int, seed: int, gain: str, u: str, keys: str, lambda0: float = 0.1
) -> dict[str, float]:
    """|S k - v| / |v| after n pairs, over `rows` seeds: the mean, the worst, and the worst of the newest pair.

    `u`: "map" for u = W k with a random W, "key" for u = k, "none" for A fixed. There is no refresh.
    """
    k = torch.stack([key_set(keys, n, d, seed + row) for row in range(rows)])
    v = torch.stack([draw(30_000 + seed + row, (n, d)) for row in range(rows)])
    W = draw(40_000 + seed, (d, d))
    directions = k @ W.mT if u == "map" else k
    _, state = varla.vla(
        k[:, :, None], k[:, :, None], v[:, :, None], directions[:, :, None],
        feature_map="identity", gain=gain, lambda0=lambda0, refresh_every=None, penalty_scale=1.0,
        update_penalty=u != "none", return_state=True,
    )  # fmt: skip
    error = (k @ state.S[:, 0].mT - v).norm(dim=-1) / v.norm(dim=-1)
    return {"all": float(error.mean()), "worst": float(error.max()), "newest": float(error[:, -1].max())}


def key_set(kind: str, n: int, d: int, seed: int) -> Tensor:
    """n unit keys [n, d]: orthonormal, or random (linearly independent with probability 1 for n <= d)."""
    drawn = draw(seed, (d, d))
    return torch.linalg.qr(drawn).Q[:n] if kind == "orthonormal" else unit(drawn)[0][:n]


def reduction(n: int, d: int, seed: int, keys: str) -> dict[str, float]:
    """Relative differences between S of VLA with u = 0 after n tokens and S of other mechanisms.

    "delta rule" has strength beta = 1; "linear attention" has unit keys; "A fixed" is VLA without penalty updates.
    """
    k, v = key_set(keys, n, d, seed)[None, :, None], draw(50_000 + seed, (1, n, 1, d))
    zero, one = torch.zeros_like(k), torch.ones(1, n, 1, dtype=torch.float64)
    plain: dict[str, Any] = {"feature_map": "identity", "return_state": True}
    _, ours = varla.vla(k, k, v, zero, refresh_every=None, **plain)
    _, fixed = varla.vla(k, k, v, k, update_penalty=False, **plain)
    _, delta = varla.delta_rule(k, k, v, one, **plain)
    _, linear = varla.linear_attention(k, k, v, **plain)
    size = torch.linalg.matrix_norm(ours.S)
    others = {"delta rule": delta.S, "linear attention": linear.S, "A fixed": fixed.S}
    return {name: float((torch.linalg.matrix_norm(S - ours.S) / size).max()) for name, S in others.items()}


def fixed_norm(d: int, rows: int, seed: int) -> dict[str, float]:
    """The largest spectral norm of a step in 500 tokens, with A fixed and with A updated."""
    found = {}
    for name, penalty in (("fixed", "none"), ("updated", "root")):
        k, a, _ = trajectory(Inputs(d, penalty=penalty), 500, rows, seed)
        found[name] = float(spectral_norm(k, a).max())
    return found
