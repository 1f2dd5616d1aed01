"""The scalar arguments of each mechanism as one frozen value, checked once when it is made."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from varla.ops.features import FEATURE_MAPS

Gain = Literal["unit", "projection", "raw"]
GAINS: tuple[str, ...] = get_args(Gain)


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise a ValueError unless `value` is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_number(name: str, value: object, *, above: float | None = None, least: float | None = None) -> None:
    """Raise unless `value` is a finite real number, > `above` or >= `least` where given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least:g}, got {value!r}")


def check_count(name: str, value: object, *, none_means: str | None = None) -> None:
    """Raise unless `value` is an integer of at least 1, or None where that means something."""
    if value is None and none_means is not None:
        return
    other = "" if none_means is None else f", or None ({none_means})"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer{other}, got {type(value).__name__}")
    if not 1 <= value < 2**63:
        raise ValueError(f"{name} must be at least 1{other}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise a TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


@dataclass(frozen=True)
class VLASettings:
    """Scalars of `varla.vla`; see there. `penalty_scale` is resolved: the number that |u| is set to."""

    lambda0: float
    refresh_every: int | None
    refresh: float
    eps: float
    gain: str
    feature_map: str
    penalty_scale: float
    normalizer: bool
    normalize_key: bool
    update_penalty: bool

    def __post_init__(self) -> None:
        """Check every value, so that no form of the operator has to."""
        check_number("lambda0", self.lambda0, above=0)
        check_count("refresh_every", self.refresh_every, none_means="no refresh")
        check_number("refresh", self.refresh, least=0)
        check_number("eps", self.eps, above=0)
        check_choice("gain", self.gain, GAINS)
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        check_number("penalty_scale", self.penalty_scale, above=0)
        for name in ("normalizer", "normalize_key", "update_penalty"):
            check_flag(name, getattr(self, name))

    @property
    def beat(self) -> tuple[int, float] | None:
        """(period, eta) of the refresh, None if there is none: a fixed A (update_penalty=False) is not refreshed."""
        if not self.update_penalty or self.refresh_every is None or self.refresh == 0:
            return None
        return self.refresh_every, self.refresh


@dataclass(frozen=True)
class LinearAttentionSettings:
    """Scalars of `varla.linear_attention`; see there."""

    eps: float
    feature_map: str
    normalizer: bool

    def __post_init__(self) -> None:
        """Check every value."""
        check_number("eps", self.eps, above=0)
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        check_flag("normalizer", self.normalizer)


@dataclass(frozen=True)
class DeltaRuleSettings:
    """Scalars of `varla.delta_rule`; see there. `scale` is resolved."""

    feature_map: str
    normalize_query: bool
    normalize_key: bool
    scale: float

    def __post_init__(self) -> None:
        """Check every value."""
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        check_flag("normalize_query", self.normalize_query)
        check_flag("normalize_key", self.normalize_key)
        check_number("scale", self.scale, above=0)


@dataclass(frozen=True)
class DecayedDeltaRuleSettings:
    """Scalars of `varla.decayed_delta_rule`; see there."""

    normalize_key: bool

    def __post_init__(self) -> None:
        """Check every value."""
        check_flag("normalize_key", self.normalize_key)


Settings = VLASettings | LinearAttentionSettings | DeltaRuleSettings | DecayedDeltaRuleSettings
