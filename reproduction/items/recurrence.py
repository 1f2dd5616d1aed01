"""The recurrence S <- S (I - k a^T) + v a^T on random inputs: keys, write directions, norms of I - a k^T."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from varla.ops.algebra import apply, dot, outer
from varla.ops.directions.gain import write_direction
from varla.ops.directions.reference import penalty_step
from varla.ops.directions.settings import DirectionSettings
from varla.ops.features import feature, unit

FORMS = ("v2", "v3", "rls")


@dataclass(frozen=True)
class Inputs:
    """The inputs of a trajectory: raw keys N(0, 1) and u = W k with one random W, as in an untrained layer.

    `form`: "v3" is the paper's VLA, with unit keys and unit write directions; "v2" normalises neither; "rls" is
    classical recursive least squares, with u = k and write direction A k. `key_scale` is the standard deviation of raw
    keys. `penalty`: "root" for |u| = 1 / sqrt(d) (Algorithm 1), "unit" for |u| = 1 (eq. penalty), "none" for A fixed.
    """

    d: int
    form: str = "v3"
    feature_map: str = "elu1"
    key_scale: float = 1.0
    penalty: str = "root"
    lambda0: float = 0.1

    def __post_init__(self) -> None:
        """Check the names that nothing else checks."""
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {self.form!r}")
        if self.penalty not in ("root", "unit", "none"):
            raise ValueError(f"penalty must be 'root', 'unit' or 'none', got {self.penalty!r}")

    @property
    def settings(self) -> DirectionSettings:
        """The operator's settings. Recursive least squares has no refresh, which would make it something else."""
        return DirectionSettings(
            lambda0=self.lambda0,
            refresh_every=None if self.form == "rls" else 20,
            refresh=1e-3,
            gain="unit" if self.form == "v3" else "raw",
            feature_map=self.feature_map,
            penalty_scale=1.0 if self.penalty == "unit" else self.d**-0.5,
            normalize_key=self.form == "v3",
            update_penalty=self.penalty != "none",
        )


def trajectory(inputs: Inputs, T: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(k, a, A): the operator's keys and write directions [T, rows, d], and the last A [rows, d, d].

    Row r is drawn in float64 with the seed `seed + r`.
    """
    settings = inputs.settings
    drawn = torch.stack([draw(seed + row, (T + inputs.d, inputs.d)) for row in range(rows)])
    W, raw = drawn[:, : inputs.d], drawn[:, inputs.d :]
    A = (torch.eye(inputs.d, dtype=torch.float64) / inputs.lambda0).expand(rows, 1, inputs.d, inputs.d)
    keys, directions = [], []
    for t in range(T):
        k = feature(raw[:, t, None] * inputs.key_scale, inputs.feature_map)
        k = unit(k)[0] if settings.normalize_key else k
        if inputs.form == "rls":
            A = least_squares_step(A, k)
        else:
            A = penalty_step(A, apply(W, raw[:, t])[:, None], torch.full((rows,), t + 1), settings)
        keys.append(k[:, 0])
        directions.append(write_direction(apply(A, k), k, settings.gain)[:, 0])
    return torch.stack(keys), torch.stack(directions), A[:, 0]


def least_squares_step(A: Tensor, k: Tensor) -> Tensor:
    """A after a token with u = k, which is not normalised here, unlike in the operator."""
    z = apply(A, k)
    return A - outer(z, z) / (1 + dot(k, z))[..., None]


def draw(seed: int, shape: tuple[int, ...]) -> Tensor:
    """N(0, 1) numbers in float64, from a new generator with this seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def transition(k: Tensor, a: Tensor) -> Tensor:
    """I - a k^T [..., d, d]: a gradient of S is multiplied by it from the right on the way back through a token."""
    return torch.eye(k.shape[-1], dtype=k.dtype) - outer(a, k)


def spectral_norm(k: Tensor, a: Tensor) -> Tensor:
    """The largest singular value of I - a k^T in closed form, for vectors [..., d] of any length, d >= 2.

    With c = k.a and p = |k|^2 |a|^2, the two singular values that may differ from 1 have s1^2 + s2^2 = 2 - 2c + p and
    s1 s2 = |1 - c|. For unit vectors the larger one is (1 + sqrt(5 - 4c)) / 2.
    """
    c = dot(k, a)[..., 0]
    p = dot(k, k)[..., 0] * dot(a, a)[..., 0]
    return torch.sqrt((2 - 2 * c + p + torch.sqrt((p * (p + 4 * (1 - c))).clamp(min=0))) / 2)


def unit_norm(c: float) -> float:
    """The same norm for unit vectors with k.a = c."""
    return (1 + math.sqrt(5 - 4 * c)) / 2
