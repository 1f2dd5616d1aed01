"""The sections by name, which of them can run here, and how one is run."""

import time
from collections.abc import Callable

import torch

import varla
from benchmarks.gpu import accuracy, cold, decode, gated, linear, mesa, paper, parts, sanitizer, speed
from benchmarks.gpu.record import Findings, Options, save, text_of

# The sections with peers come last: see `speed.run`.
SECTIONS: dict[str, Callable[[Findings, Options], None]] = {
    "accuracy": accuracy.run,
    "paper": paper.run,
    "decode": decode.run,
    "linear": linear.run,
    "gated": gated.run,
    "parts": parts.run,
    "sanitizer": sanitizer.run,
    "cold": cold.run,
    "mesa": mesa.run,
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
    """Run one section. An error in it is recorded, and the other sections still run."""
    found = Findings()
    start = time.perf_counter()

    def keep() -> None:
        found.seconds = time.perf_counter() - start
        if not options.quick and found.tables:  # an error alone does not replace an earlier measurement
            save(name, found, list(SECTIONS))

    found.keep = keep
    try:
        SECTIONS[name](found, options)
    except Exception as error:
        found.error = text_of(error)
    keep()
    return found
