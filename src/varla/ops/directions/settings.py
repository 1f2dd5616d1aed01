"""The scalars of `varla.directions`."""

import math
import sys
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from varla.arguments import check_choice, check_count, check_flag, check_number
from varla.ops.checks import dtype_name, host_range
from varla.ops.features import FEATURE_MAPS, LARGEST

GAINS = ("unit", "projection", "raw")
FORGET_AT = ("token", "beat")
LOSS = 8192  # lambda0 is at least this many times eps |u|^2: 0.001 |u|^2 in float32
SHORTEST = 8  # tokens in a chunk at this bound


class DirectionOptions(TypedDict, total=False):
    """The scalars of `varla.directions`, for type checkers; see `DirectionSettings`."""

    lambda0: float
    refresh_every: int | None
    refresh: float
    gain: str
    feature_map: str
    penalty_scale: float | None
    normalize_key: bool
    update_penalty: bool
    beat: int
    forget_at: str


@dataclass(frozen=True)
class DirectionSettings:
    """How write directions a follow from keys k and penalty directions u. Values are checked at construction.

    `varla.vla` documents them.
    """

    lambda0: float = 0.1
    refresh_every: int | None = 20
    refresh: float = 1e-3
    gain: str = "unit"
    feature_map: str = "elu1"
    penalty_scale: float | None = None
    normalize_key: bool = True
    update_penalty: bool = True
    beat: int = 64
    forget_at: str = "token"

    def __post_init__(self) -> None:
        """Check every value."""
        check_number("lambda0", self.lambda0, above=0)
        check_count("refresh_every", self.refresh_every, none_means="no refresh")
        check_number("refresh", self.refresh, least=0, below=LARGEST)
        check_choice("gain", self.gain, GAINS)
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        if self.penalty_scale is not None:
            check_number("penalty_scale", self.penalty_scale, above=0, below=LARGEST)
        check_flag("normalize_key", self.normalize_key)
        check_flag("update_penalty", self.update_penalty)
        check_count("beat", self.beat)
        check_choice("forget_at", self.forget_at, FORGET_AT)

    @property
    def refresh_beat(self) -> tuple[int, float] | None:
        """(period, eta) of the refresh; None without refresh, or if A is fixed."""
        if not self.update_penalty or self.refresh_every is None or self.refresh == 0:
            return None
        return self.refresh_every, float(self.refresh)

    def length_of_u(self, D: int) -> float:
        """|u| after normalisation, for keys of D dimensions."""
        return D**-0.5 if self.penalty_scale is None else float(self.penalty_scale)

    def lengths_of_u(self, strength: Tensor | None, D: int) -> Tensor | float:
        """|u|: the square root of the strengths [..., 1], or `length_of_u`.

        Strengths of 0 are replaced by tiny ones. They do not change A by as much as its last bit, and the gradient of a
        strength, which divides by |u|, stays finite and right.
        """
        if strength is None:
            return self.length_of_u(D)
        return strength.clamp(min=torch.finfo(strength.dtype).tiny ** 0.5).sqrt()

    def needs_float32(self, D: int) -> bool:
        """Whether kernels with products in bfloat16 or float16 would lose the result, for keys of D dimensions.

        Their errors grow like |u|^2 / lambda0: with repeated keys and u = k, 1% at 1, 5 to 9% at 10, all at 100
        (benchmarks/RESULTS.md).
        """
        return self.update_penalty and self.lambda0 < 0.3 * self.length_of_u(D) ** 2

    def check_precision(self, D: int, dtype: torch.dtype, strong: bool = False) -> None:
        """Raise a ValueError if A, beginning at I / lambda0, would lose its digits in a state of this dtype.

        `strong`: there are strengths, which set |u|; `check_strength` compares them with lambda0.

        One Sherman-Morrison step takes an eigenvalue of A from 1 / lambda0 to about 1 / |u|^2. The difference keeps the
        rounding error of the larger number: with u = k, A k has an error of up to 20 eps / lambda0 in every form after
        200 tokens. It grows slowly (21 after 800), and is larger where u is not k (50 after 800). A k itself is about
        1 / (r |u|^2) after r penalties along k, so its relative error grows like r eps |u|^2 / lambda0, until every
        direction is penalised and A is small everywhere. `longest_chunk` keeps r small inside a chunk.

        At the bound, 200 tokens with D = 16 have relative errors of 5e-4 in the outputs for random keys, 2e-3 for 8
        keys that repeat, and up to 1e-2 with gain "projection" for nearly parallel keys, which divides by a small
        number. Where every direction is penalised, A itself has 1e-3 (tests/ops/test_precision.py).
        """
        limits = torch.finfo(dtype)
        least, why = 1 / limits.max, "1 / lambda0 must be finite"
        if self.update_penalty and not strong:
            least = max(least, LOSS * limits.eps * self.length_of_u(D) ** 2)
            why = "below, rounding errors of the first steps would stay in A"
        if self.lambda0 < least:
            name = dtype_name(dtype)
            wider = "; use float64 inputs, or a larger lambda0" if dtype == torch.float32 else ""
            raise ValueError(f"lambda0 must be at least {least:.3g} in {name} ({why}), got {self.lambda0!r}{wider}")
        if self.lambda0 > 1 / limits.tiny:
            most = f"{1 / limits.tiny:.3g} in {dtype_name(dtype)}"
            raise ValueError(f"lambda0 must be at most {most}, got {self.lambda0!r}")

    def longest_chunk(self, D: int, dtype: torch.dtype, strength: Tensor | None = None) -> int:
        """The most tokens of a chunk that keeps the digits of A, for strengths [..., 1] as in `lengths_of_u`.

        A chunk of n tokens factorises I + U A U^T. The second term is up to n |u|^2 / lambda0: I is rounded with it. In
        the loop that is |u|^2 / lambda0. So chunks get shorter as lambda0 comes near its bound, where they have 8
        tokens. Strengths on a GPU are not read, and do not count. Nor does what `forget` takes from the prior.
        """
        if not self.update_penalty:
            return sys.maxsize
        values = None if strength is None else host_range(strength)
        weight = self.length_of_u(D) ** 2 if strength is None else 0.0 if values is None else values[1]
        least = LOSS * torch.finfo(dtype).eps * weight
        if not self.lambda0 < least * sys.maxsize / SHORTEST:  # a weight of 0 or NaN
            return sys.maxsize
        return max(SHORTEST, int(SHORTEST * self.lambda0 / least))

    def check_strength(self, strength: Tensor | None) -> None:
        """Raise a ValueError if strengths [..., 1] on the CPU would make A lose its digits, as in `check_precision`."""
        if strength is None or not self.update_penalty:
            return
        if self.penalty_scale is not None:
            raise ValueError("strength and penalty_scale both set the length of u: give one of them")
        values = host_range(strength)
        dtype = torch.float64 if strength.dtype == torch.float64 else torch.float32
        most = self.lambda0 / (LOSS * torch.finfo(dtype).eps)
        if values is not None and values[1] > most:
            raise ValueError(
                f"strength must be at most {most:.3g} in {dtype_name(dtype)} for lambda0 = {self.lambda0!r} (above, "
                f"rounding errors would stay in A), got values up to {values[1]:g}"
            )

    def check_forget(self, forget: Tensor | None, name: str = "forget") -> None:
        """Raise a ValueError if logarithms of forgetting factors [..., 1] cannot be used with these settings.

        `name` is the user's name for them.
        """
        if forget is None:
            return
        if self.refresh_every is not None:
            raise ValueError(
                f"forget and refresh both keep A from shrinking: use refresh_every=None, got {self.refresh_every!r}"
            )
        if not self.update_penalty:
            raise ValueError("forget changes A, and update_penalty=False keeps A fixed: give one of them")
        values = host_range(forget)
        if values is not None and values[0] == -math.inf and self.forget_at == "token":
            raise ValueError(f"{name} must be finite: a factor of 0 would leave A without a prior, got -inf")

    def check_prior(self, log_C: Tensor, strength: Tensor | None, D: int) -> None:
        """Raise a ValueError if too much of the prior is forgotten between two beats, where that can be known.

        log_C [..., 1] is the logarithm of the prior's share C after each token, in the state's precision; strength
        [..., 1] as for `lengths_of_u`. A token takes an eigenvalue of A from 1 / (C lambda0) to about 1 / |u|^2, so
        `check_precision` holds with C lambda0 in the place of lambda0. Without u, A must not overflow.
        """
        limits = torch.finfo(log_C.dtype)
        weight = log_C.new_tensor(self.length_of_u(D) ** 2) if strength is None else strength
        least = (LOSS * limits.eps * weight).clamp(min=limits.tiny**0.5)
        prior = self.lambda0 * log_C.exp()
        values = host_range(prior / least)
        if values is None or not values[0] < 1:
            return
        worst = (prior / least).argmin()
        left, bound = (float(x.detach().expand_as(log_C).flatten()[worst]) for x in (prior, least))
        wider = ", a larger lambda0 or float64 inputs" if log_C.dtype == torch.float32 else " or a larger lambda0"
        raise ValueError(
            f"forgetting leaves {left:.3g} of the prior lambda0 = {self.lambda0!r} before a beat gives it back; "
            f"{dtype_name(log_C.dtype)} needs at least {bound:.3g} (below, A would lose its digits): forget less, or "
            f"use a beat shorter than {self.beat}{wider}"
        )
