"""Numbers as text, for the report and the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduction.claims import Finding, Value


def number(value: "Value") -> str:
    """A value with four significant digits, or as a whole number if it is large."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if isinstance(value, int) or 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def spread(found: "Finding") -> str:
    """Our value, with the smallest and the largest if there are several seeds."""
    if found.low is None or found.high is None or found.count < 2:
        return number(found.ours)
    return f"{number(found.ours)} ({number(found.low)} to {number(found.high)})"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def many(count: int, one: str) -> str:
    """A count with its noun: many(2, "run") is "2 runs"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"
