"""Language models of every mechanism side by side: `python -m benchmarks.lm --corpus FOLDER`; see docs/language.md.

benchmarks.lm.corpus makes the folder. Every finished run is saved to benchmarks/results/lm.json at once and not made
again. With `--minutes` a call ends in time, and the next call continues. `--quick` runs everything at a tiny size, on
the CPU and on this project's own text. `--gated` is the second comparison, of mechanisms with gates, with its own
records (lm_gated.json). `--budget` prints the cost and runs nothing.
"""

import argparse
import hashlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.lm import data
from benchmarks.lm.contenders import (
    CONTENDERS,
    EVERY,
    FULL,
    GATED,
    GATED_CONTENDERS,
    QUICK,
    Contender,
    Scale,
    budget,
    seconds,
)
from benchmarks.lm.record import Record
from benchmarks.lm.run import Job, run
from benchmarks.lm.table import markdown

QUICK_FILE = Path("runs/lm-quick.json")  # kept apart from the results
SPARE = 1.3  # a run may take this many times its expected time


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    scale, among = sized(given), GATED_CONTENDERS if given.gated else CONTENDERS
    if given.budget:
        print(cost(scale, {}, among))
        return 0
    deadline = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    device = torch.device("cuda" if torch.cuda.is_available() and not given.quick else "cpu")
    train, validation, corpus = texts(given.corpus)
    rows = data.Texts.of(train, scale.context, device)
    held = data.Validation.of(validation, max(scale.contexts), scale.context, scale.scored, scale.tried)
    print(f"{len(rows)} rows of {scale.context} tokens, {rows.padding:.1%} padding; {len(held.reported)} tokens scored")
    record = Record.load(given.out, scale, corpus)
    failed = work(record, given.only or list(among), deadline, lambda job: run(job, scale, rows, held, given.eager))
    print(cost(scale, record.speeds(), among))
    print(markdown(record.runs))
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.lm", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder that benchmarks.lm.corpus wrote")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few steps, on the CPU")
    parser.add_argument("--gated", action="store_true", help="the comparison of mechanisms with gates")
    parser.add_argument("--budget", action="store_true", help="print the cost and run nothing")
    parser.add_argument("--minutes", type=float, help="begin no run that would end later than this")
    parser.add_argument("--only", nargs="+", choices=EVERY, metavar="CONTENDER", help=f"of: {', '.join(EVERY)}")
    parser.add_argument("--tokens", type=int, help="tokens of a reported run")
    parser.add_argument("--choice", type=int, help="tokens of a run that tries a learning rate")
    parser.add_argument("--rates", type=float, nargs="+", metavar="RATE", help="learning rates to try, no others")
    parser.add_argument("--seeds", type=int, help="reported runs of every contender")
    parser.add_argument("--rows", type=int, help="rows in a step")
    parser.add_argument("--eager", action="store_true", help="run steps without CUDA graphs")
    parser.add_argument("--out", type=Path, help="file to save the runs in")
    given = parser.parse_args(arguments)
    if given.corpus is None and not (given.quick or given.budget):
        parser.error("--corpus FOLDER is needed (python -m benchmarks.lm.corpus FOLDER makes it), or --quick")
    for name in ("tokens", "choice", "seeds", "rows"):
        if (value := getattr(given, name)) is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    if given.rates is not None and min(given.rates) <= 0:
        parser.error(f"--rates must be greater than 0, got {min(given.rates):g}")
    if given.out is None:
        given.out = QUICK_FILE if given.quick else measure.RESULTS / ("lm_gated.json" if given.gated else "lm.json")
    return given


def sized(given: argparse.Namespace) -> Scale:
    scale = QUICK if given.quick else GATED if given.gated else FULL
    changes = {name: getattr(given, name) for name in ("tokens", "choice", "rows")}
    if given.rates is not None:
        changes |= {"rates": tuple(sorted(given.rates)), "beyond": 0}
    if given.seeds is not None:
        changes["seeds"] = tuple(range(1, given.seeds + 1))
    return replace(scale, **{name: value for name, value in changes.items() if value is not None})


def texts(folder: Path | None) -> tuple[list[bytes], list[bytes], str]:
    """(training documents, validation documents, identity of the corpus)."""
    if folder is None:
        train, validation = data.own()
        return train, validation, "own"
    described = json.loads((folder / "sources.json").read_text())
    digests = "".join(described[part]["sha256"] for part in ("train", "validation"))
    return (
        data.read(folder, "train"),
        data.read(folder, "validation"),
        hashlib.sha256(digests.encode()).hexdigest()[:16],
    )


def work(
    record: Record, names: Sequence[str], deadline: float | None, do: Callable[[Job], dict[str, object]]
) -> list[str]:
    """Make runs until none is left or the next would not end in time. Returns the contenders that failed.

    If a contender fails, for lack of memory for example, the others continue.
    """
    failed: list[str] = []
    while (job := record.next([name for name in names if name not in failed])) is not None:
        expected = seconds(job.contender, job.tokens, record.speeds().get(job.contender))
        if deadline is not None and time.monotonic() + SPARE * expected > deadline:
            print(f"no time for {job.contender}, {job.purpose}: about {expected:.0f} s")
            break
        try:
            found = do(job)
        except RuntimeError:
            traceback.print_exc()
            failed.append(job.contender)
            continue
        record.add(job, found)
        print(f"{job.contender}, {job.purpose}, rate {job.rate:g}, seed {job.seed}: {line(found)}", flush=True)
    return failed


def line(found: dict[str, object]) -> str:
    bits = found["bits per byte"]
    shown = ", ".join(f"{context}: {value:.4f}" for context, value in bits.items()) if isinstance(bits, dict) else ""
    return f"{found['status']}, {found['tokens/s']:.3g} tokens/s, {found['seconds']} s, bits per byte {shown or 'none'}"


def cost(scale: Scale, speeds: dict[str, float], among: Mapping[str, Contender] = CONTENDERS) -> str:
    header = ["contender", "GFLOP/token", "tokens/s", "choosing min", "reported min"]
    rows = budget(scale, speeds, among)
    total = sum(float(cell) for row in rows for cell in row[3:])
    steps = f"{scale.steps(scale.tokens)} steps reported, {scale.steps(scale.choice)} to choose"
    return f"{measure.table(header, rows)}\n{steps}; {total:.0f} minutes in total on one H200, about"


if __name__ == "__main__":
    sys.exit(main())
