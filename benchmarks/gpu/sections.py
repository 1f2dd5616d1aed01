"""The sections by name, whether one can run here, and running it."""

import time
from collections.abc import Callable

import torch

import varla
from benchmarks.gpu import accuracy, cold, decode, linear, paper, parts, sanitizer, speed
from benchmarks.gpu.record import Findings, Options, save, text_of

# The peers' section last: see `speed.run`.
SECTIONS: dict[str, Callable[[Findings, Options], None]] = {
    "accuracy": accuracy.run,
    "paper": paper.run,
    "decode": decode.run,
    "linear": linear.run,
    "parts": parts.run,
    "sanitizer": sanitizer.run,
    "cold": cold.run,
    "speed": speed.run,
}


def refusal(name: str, quick: bool) -> str | None:
    """Why a section cannot run here; None if it can."""
    if not torch.cuda.is_available() and name != "accuracy":
        return "it measures time on a CUDA GPU, and there is none here"
    reason = varla.backends()["triton"].reason
    if reason is None and not torch.cuda.is_available() and not quick:
        return "in Triton's interpreter it would take hours: add --quick"
    return reason


def run(name: str, options: Options) -> Findings:
    """One section. Whatever goes wrong in it is recorded, and the others go on."""
    found = Findings()
    start = time.perf_counter()

    def keep() -> None:
        found.seconds = time.perf_counter() - start
        if not options.quick and found.tables:  # an earlier measurement is worth more than an error
            save(name, found, list(SECTIONS))

    found.keep = keep
    try:
        SECTIONS[name](found, options)
    except Exception as error:
        found.error = text_of(error)
    keep()
    return found
