"""The scalar arguments of each mechanism as one frozen value, checked once when it is made."""

from dataclasses import dataclass
from typing import Literal, get_args

from varla.ops.arguments import check_choice, check_count, check_flag, check_number
from varla.ops.features import FEATURE_MAPS

Gain = Literal["unit", "projection", "raw"]
GAINS: tuple[str, ...] = get_args(Gain)


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
