"""The three standard streams when they are not as usual: closed, full, or a terminal that obeys control characters."""

import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from varla.runs.writing import naming

STANDARD_OUTPUT = "standard output"

# Line ends and tabs are text. Every other control character could move the cursor or give the terminal orders.
_PLAIN = "\n\t"


def prepare() -> None:
    """Open /dev/null in place of each standard stream that is closed, and let every stream take any character.

    Otherwise the next file that is opened gets the stream's number, and whatever prints there writes into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):  # Python leaves None; stdin stays None, so that a prompt from there is an error
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # an ASCII locale: \u2211, not an error
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Send the rest of standard output nowhere, once it cannot be written: Python tries again when it exits."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # not a real stream: a test's, a notebook's
        pass


@contextmanager
def results_only() -> Iterator[None]:
    """Send what is printed in here to standard error: standard output is for results.

    Compiled libraries write to the stream's number, which `redirect_stdout` does not reach: tokenizers prints its
    complaints about a folder's settings there.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def write(text: str) -> None:
    """Write to standard output at once. In a terminal, control characters are made visible."""
    with naming(STANDARD_OUTPUT):
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def visible(text: str) -> str:
    """The text with control characters as symbols: what a model, a file or a name holds must not steer a terminal."""
    return "".join(_symbol(c) if unicodedata.category(c) == "Cc" and c not in _PLAIN else c for c in text)


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"
