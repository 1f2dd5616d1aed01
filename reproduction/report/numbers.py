"""Numbers as reports and the terminal write them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduction.claims import Finding, Value


def number(value: "Value") -> str:
    """A value of the paper's or ours, as short as it is exact enough."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def spread(found: "Finding") -> str:
    """Ours, with the least and the greatest over seeds where there are several."""
    if found.low is None or found.high is None or found.count < 2:
        return number(found.ours)
    return f"{number(found.ours)} ({number(found.low)} to {number(found.high)})"


def duration(seconds: float) -> str:
    """So many seconds, in the unit that a person would use."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
