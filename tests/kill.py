"""Kill every writer at random moments, resume it, and compare it with one that was never interrupted.

    python -m tests.kill --tries 100                 # or `make kill`; a small sample of it runs in pytest
    python -m tests.kill --tries 100 train session

Every other SIGKILL comes just before a file is opened, renamed or removed, the others at any moment.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before PyTorch: a forked process must not wait for threads that it has not
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VARLA_COMMIT": "a test"}

import torch
from safetensors.torch import load_file

from tests.lm import cases
from tests.session import cases as session_cases
from tests.training.test_loop import TINY, numbers, tiny, weights
from varla.files import digest
from varla.lm import checkpoints
from varla.lm import training as lm
from varla.report import curves
from varla.runs.folder import RunFolder
from varla.session import Session
from varla.training import Run, sweep, train

CONTEXT = multiprocessing.get_context("fork")
TOUCHES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}  # audit events before a folder changes
TEXT = Path(tempfile.gettempdir()) / f"varla-kill-text-{os.getpid()}"


@dataclass(frozen=True)
class Writer:
    """`write` begins in a folder, or resumes, and runs to its end. `result` says what is there when it is over.

    `check`: what holds after every kill, too.
    """

    write: Callable[[Path], object]
    result: Callable[[Path], Any]
    check: Callable[[Path], object] = lambda folder: None


def _train(folder: Path) -> None:
    config = tiny("train.steps=12", "train.checkpoint_every=2", "train.eval_every=6")
    train(config, folder, resume=Run(folder).config_file.exists(), device="cpu")


def _train_result(folder: Path) -> Any:
    record = Run(folder).record()
    return numbers(folder), weights(folder), record["status"], record["final"], leftovers(folder)


def _train_lm(folder: Path) -> None:
    chosen = cases.settings(str(TEXT / "*.txt"), "train.save_steps=2", "train.report_to=tensorboard")
    lm.train(chosen, folder, resume=RunFolder(folder).config_file.exists())


def _train_lm_result(folder: Path) -> Any:
    record = RunFolder(folder).record()
    logged = checkpoints.state_of(folder / "checkpoint-6")["log_history"]
    losses = {entry["step"]: entry["loss"] for entry in logged if "loss" in entry}
    found = digest(load_file(folder / "model" / "model.safetensors"))
    return losses, found, record["status"], record["scores"], record["loss"], leftovers(folder)


def _check_train_lm(folder: Path) -> None:
    """A model's folder is whole as soon as it is there."""
    if (folder / "model").exists():
        assert load_file(folder / "model" / "model.safetensors")
        assert (folder / "model" / "tokenizer_config.json").is_file()


def _sweep(folder: Path) -> None:
    base = {**TINY, "train": {**TINY["train"], "steps": 6, "checkpoint_every": 2}}
    jobs = sweep.expand(base, {"seed": [1, 2]}, folder)
    sweep.plan(jobs)
    sweep.run(jobs, workers=1, device="cpu", pause=0.02)
    assert [job.state for job in jobs] == ["finished", "finished"], [job.note for job in jobs]


def _sweep_result(folder: Path) -> Any:
    return [_train_result(folder / name) for name in ("seed1", "seed2")]


MODEL = session_cases.tiny()


def _session(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / "state"
    found = Session.load(file, MODEL) if file.exists() else Session(MODEL)
    for token in range(found.position, 40):
        found.feed([token]).save(file)


def _session_result(folder: Path) -> Any:
    return digest(load_file(folder / "state")), Session.load(folder / "state", MODEL).position


def _check_session(folder: Path) -> None:
    """The file is of some moment, and continues as if nothing had happened."""
    if (folder / "state").exists():
        found, again = Session.load(folder / "state", MODEL), Session(MODEL)
        for token in range(found.position):
            again.feed([token])
        assert torch.equal(found.logits, again.logits)


def _report(folder: Path) -> None:
    for i in range(1, 6):
        runs = {"run": [{"step": step, "eval": step / (10 * i)} for step in range(5)]}
        curves.save(curves.learning_curves(runs), folder / "curves.svg")


def _report_result(folder: Path) -> Any:
    return (folder / "curves.svg").read_text()


def _check_report(folder: Path) -> None:
    if (folder / "curves.svg").exists():
        assert (folder / "curves.svg").read_text().rstrip().endswith("</svg>")


WRITERS = {
    "train": Writer(_train, _train_result),
    "train-lm": Writer(_train_lm, _train_lm_result, _check_train_lm),
    "sweep": Writer(_sweep, _sweep_result),
    "session": Writer(_session, _session_result, _check_session),
    "report": Writer(_report, _report_result, _check_report),
}


def leftovers(folder: Path) -> list[str]:
    """What should not be there at the end."""
    return sorted(path.name for path in folder.rglob(".*") if path.name != ".lock")


def attempt(write: Callable[[], object], log: Path, touch: int = 0, seconds: float | None = None) -> tuple[bool, int]:
    """(whether it was killed, how often it touched files). The kill comes before touch number `touch`, or in time.

    What it prints goes to `log`.
    """
    touched = CONTEXT.Value("i", 0)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in TOUCHES or (event == "open" and isinstance(arguments[1], str) and set("wax+") & set(arguments[1])):
            touched.value += 1
            if touched.value == touch:
                os.killpg(0, signal.SIGKILL)

    def process() -> None:
        os.setsid()  # a group of its own: its workers are killed with it, as by a failing machine
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.addaudithook(hook)
        write()

    child = CONTEXT.Process(target=process)
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"it failed:\n{log.read_text()[-3000:]}"
    return child.exitcode != 0, touched.value


def kill(name: str, tries: int, seed: int = 0) -> dict[str, int]:
    """Kill a writer so many times; returns counts. Raises an AssertionError if anything differs or cannot resume."""
    writer, choose = WRITERS[name], random.Random(seed)
    root = Path(tempfile.mkdtemp(prefix=f"varla-kill-{name}-"))
    cases.write_text(TEXT, documents=2)
    try:
        begun = time.monotonic()
        _, touches = attempt(lambda: writer.write(root / "whole"), root / "log")
        lasts = time.monotonic() - begun
        expected = writer.result(root / "whole")
        kills = runs = 0
        while kills < tries:
            folder, ended = root / f"{runs}", False
            while not ended:
                last = kills >= tries
                by_touch = kills % 2 == 0 and not last
                killed, _ = attempt(
                    lambda: writer.write(folder),  # noqa: B023
                    root / "log",
                    touch=choose.randint(1, touches) if by_touch else 0,
                    seconds=None if by_touch or last else max(0.05, choose.uniform(0, lasts)),
                )
                kills, ended = kills + killed, not killed
                writer.check(folder)
            assert writer.result(folder) == expected, f"{name}: {folder} differs from an uninterrupted run"
            shutil.rmtree(folder)
            runs += 1
    except BaseException:
        print(f"{name}: seed {seed}, left in {root}", file=sys.stderr)
        raise
    shutil.rmtree(root)
    shutil.rmtree(TEXT)
    return {"kills": kills, "runs": runs}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__.splitlines()[0])
    parser.add_argument("writers", nargs="*", metavar="WRITER", help=f"of {', '.join(WRITERS)} (default: all)")
    parser.add_argument("--tries", type=int, default=100, help="kills of each writer (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.writers if name not in WRITERS]:
        parser.error(f"unknown writer {unknown[0]!r} (allowed: {', '.join(WRITERS)})")
    for name in chosen.writers or WRITERS:
        begun = time.monotonic()
        found = kill(name, chosen.tries, chosen.seed)
        took = time.monotonic() - begun
        print(f"{name:<9} {found['kills']} kills in {found['runs']} runs, all equal, {took:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
