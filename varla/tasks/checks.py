"""Errors that a person can act on: each names the argument, what came and what is allowed."""

import difflib
import math
from collections.abc import Iterable


def check_int(name: str, value: object, *, least: int, because: str = "") -> None:
    """Raise unless `value` is an integer of at least `least`; `because` says where that bound comes from."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    if value < least:
        reason = f" ({because})" if because else ""
        raise ValueError(f"{name} must be at least {least}{reason}, got {value}")


def check_positive(name: str, value: object) -> None:
    """Raise unless `value` is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be finite and greater than 0, got {value!r}")


def check_word(what: str, value: object, allowed: Iterable[str], *, where: str = "") -> str:
    """Return `value` if it is one of the allowed words, else raise an error with the nearest and all of them."""
    words = tuple(allowed)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, got {value!r} ({type(value).__name__})")
    if value in words:
        return value
    # Capitals and the choice of - or _ are the likeliest slips, and difflib counts them as different letters.
    folded = {word.lower().replace("_", "-"): word for word in words}
    nearest = difflib.get_close_matches(value.lower().replace("_", "-"), folded, n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown {what} {value!r}{where}: did you mean {folded[nearest]!r}? allowed: {', '.join(words)}")
