"""Checks of plain arguments, for the whole package. Each error names the argument, its value and what is allowed."""

import difflib
import sys
from collections.abc import Iterable


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise a ValueError unless `value` is one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    or_none: bool = False,
) -> None:
    """Raise unless `value` is a finite real number > `above`, >= `least` and < `below`, or None with `or_none`."""
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not -sys.float_info.max <= value <= sys.float_info.max:  # NaN, or beyond what a float can hold
        raise ValueError(f"{name} must be finite, got {_short(value)}")
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least:g}, got {value!r}")
    if below is not None and not value < below:
        raise ValueError(f"{name} must be below {below:g}, got {value!r}")


def _short(value: float) -> str:
    """The value, but only the size of an integer that has very many digits."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 10**40 else repr(value)


def check_count(name: str, value: object, *, least: int = 1, because: str = "", none_means: str | None = None) -> None:
    """Raise unless `value` is an integer of at least `least`.

    None is allowed if `none_means` says what it means. `because` explains the bound in the message.
    """
    if value is None and none_means is not None:
        return
    other = "" if none_means is None else f", or None ({none_means})"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer{other}, got {value!r} ({type(value).__name__})")
    if value < least:
        reason = f" ({because})" if because else ""
        raise ValueError(f"{name} must be at least {least}{reason}{other}, got {value!r}")
    if value >= 2**63:
        raise ValueError(f"{name} must be below 2**63, the limit of PyTorch's integers, got {_short(value)}")


def check_flag(name: str, value: object) -> None:
    """Raise a TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def refuse_unknown(
    what: str, name: object, allowed: Iterable[str], *, where: str = "", error: type[Exception] = ValueError
) -> None:
    """Raise `error` unless `name` is allowed. It suggests the nearest allowed name and lists all of them."""
    words = list(allowed)
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, got {name!r} ({type(name).__name__})")
    if name in words:
        return
    # Most slips are capitals, or - for _; difflib would count them as different letters.
    folded = {word.lower().replace("_", "-"): word for word in words}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), folded, n=1)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    raise error(f"unknown {what} {name!r}{where}{hint} (allowed: {', '.join(words)})")
