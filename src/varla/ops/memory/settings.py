"""The scalars of `varla.memory`."""

from dataclasses import dataclass
from typing import TypedDict

from varla.arguments import check_choice, check_flag, check_number
from varla.ops.features import FEATURE_MAPS, LARGEST


class MemoryOptions(TypedDict, total=False):
    """The scalars of `varla.memory`, for type checkers; see `MemorySettings`."""

    eps: float
    feature_map: str
    normalizer: bool
    normalize_query: bool
    normalize_key: bool
    scale: float | None
    error: bool
    decay_first: bool


@dataclass(frozen=True)
class MemorySettings:
    """How S is written and read along given directions. Values are checked at construction.

    Args:
        eps: smallest denominator.
        feature_map: "elu1" (ELU + 1), "silu", or "identity" if q and k are features already.
        normalizer: divide outputs by max(q . z, eps), where z is the running sum of key features. False: o = S q.
        normalize_query: normalise query features to unit length.
        normalize_key: normalise key features to unit length for S. z sums them without normalisation.
        scale: factor on the query features. None: D ** -0.5.
        error: write the error v - S k. False: write v itself, as linear attention does.
        decay_first: S decays before the prediction S k, as in Gated DeltaNet. False: after it, as in the VLA paper's
            "DeltaNet".
    """

    eps: float = 1e-4
    feature_map: str = "elu1"
    normalizer: bool = True
    normalize_query: bool = False
    normalize_key: bool = True
    scale: float | None = 1.0
    error: bool = True
    decay_first: bool = True

    def __post_init__(self) -> None:
        """Check every value."""
        check_number("eps", self.eps, above=0, below=LARGEST)
        check_choice("feature_map", self.feature_map, FEATURE_MAPS)
        if self.scale is not None:
            check_number("scale", self.scale, above=0, below=LARGEST)
        for name in ("normalizer", "normalize_query", "normalize_key", "error", "decay_first"):
            check_flag(name, getattr(self, name))

    def scale_of(self, D: int) -> float:
        """The factor on the query features, for keys of D dimensions."""
        return D**-0.5 if self.scale is None else float(self.scale)
