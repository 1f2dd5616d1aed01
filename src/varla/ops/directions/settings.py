"""The scalars of `varla.directions`."""

from dataclasses import dataclass
from typing import TypedDict

from varla.arguments import check_choice, check_count, check_flag, check_number
from varla.ops.features import FEATURE_MAPS

GAINS = ("unit", "projection", "raw")


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

    def __post_init__(self) -> None:
        """Check every value."""
        check_number("lambda0", self.lambda0, above=0)
        check_count("refresh_every", self.refresh_every, none_means="no refresh")
        check_number("refresh", self.refresh, least=0)
        check_choice("gain", self.gain, GAINS)
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        if self.penalty_scale is not None:
            check_number("penalty_scale", self.penalty_scale, above=0)
        check_flag("normalize_key", self.normalize_key)
        check_flag("update_penalty", self.update_penalty)

    @property
    def refresh_beat(self) -> tuple[int, float] | None:
        """(period, eta) of the refresh; None without refresh, or if A is fixed."""
        if not self.update_penalty or self.refresh_every is None or self.refresh == 0:
            return None
        return self.refresh_every, float(self.refresh)

    def length_of_u(self, D: int) -> float:
        """|u| after normalisation, for keys of D dimensions."""
        return D**-0.5 if self.penalty_scale is None else float(self.penalty_scale)
