"""`varla generate`: a trained model continues a text."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from varla.cli.kinds import LM, check_kind
from varla.cli.options import Device, Model, choose_device
from varla.cli.output import note
from varla.cli.reading import reading
from varla.cli.streams import results_only, write
from varla.runs.outcomes import Interrupted, Stop
from varla.runs.writing import naming

if TYPE_CHECKING:
    from varla.models import VarlaForCausalLM
    from varla.session import Session

STDIN = "-"


def generate(
    model: Model,
    source: Annotated[str | None, typer.Argument(help="-: the prompt is standard input.", metavar="[-]")] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.", metavar="TEXT")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="File of text to continue, of any length.", metavar="FILE")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that together have this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the samples. Default: another text every time.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Continue from a state that --save-state wrote. The prompt follows it.")
    ] = None,
    save_state: Annotated[Path | None, typer.Option(help="Write the final state to this file.", metavar="FILE")] = None,
    device: Device = None,
) -> None:
    """Continue a prompt, token by token, in constant memory. The text goes to standard output at once.

    The state has read the prompt and what was printed.
    """
    _check_sources(source, prompt, prompt_file, state)
    from varla.arguments import check_count
    from varla.session import Session
    from varla.session.file import check_target
    from varla.session.sampling import Sampling

    # Everything that can be refused is, before a long prompt is read.
    check_count("--tokens", tokens, least=0)
    check_count("--seed", seed, least=0, none_means="another text every time")
    Sampling(temperature, top_k, top_p)
    if save_state is not None:
        check_target(save_state)
    with _prompt(source, prompt, prompt_file) as texts:
        found, tokenizer = load(model, device)
        session = Session(found, tokenizer) if state is None else Session.load(state, found, tokenizer)
        before = session.position
        if texts is not None:
            session.feed_text(texts)
            if session.position == before:
                raise ValueError("the prompt is empty: there is nothing to continue")
    pieces = session.generate_text(tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    try:
        stopped = _print(pieces)
    except OSError:  # `| head` or a full disk ends the text early: the state is saved all the same
        if save_state is not None:
            _save(session, save_state)
            note(f"the text cannot be written any further; the state after token {session.position} is in {save_state}")
        raise
    if save_state is not None:
        _save(session, save_state)
    if stopped:
        saved = "" if save_state is None else f"; the state is in {save_state}"
        raise Interrupted(f"stopped after token {session.position}{saved}")


def _save(session: "Session", file: Path) -> None:
    with naming(file):
        session.save(file)


def _print(pieces: Iterator[str]) -> bool:
    """Print the text as it comes. Returns whether Ctrl-C ended it; that lets the current token finish."""
    with Stop() as stop:
        for text in pieces:
            write(text)
            if stop.wanted:
                break
    if sys.stdout.isatty():
        write("\n")
    return stop.wanted


def load(folder: Path, device: str | None) -> "tuple[VarlaForCausalLM, Any]":
    """(model, tokenizer) on the device asked for, or on a GPU where there is one."""
    chosen = choose_device(device)
    check_kind(folder, LM, f"it holds no language model; evaluate it with `varla eval {folder}`")
    from transformers.utils import logging

    from varla.lm.folder import load_folder

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what it would warn of is an error of ours
    with results_only():
        return load_folder(folder, chosen)


def _check_sources(source: str | None, prompt: str | None, prompt_file: Path | None, state: Path | None) -> None:
    if source not in (None, STDIN):
        raise ValueError(f"unknown argument {source!r}: the prompt is given by --prompt, --prompt-file or {STDIN}")
    given = sum(each is not None for each in (source, prompt, prompt_file))
    if given > 1:
        raise ValueError(f"give one of --prompt, --prompt-file and {STDIN} (standard input), not several")
    if not given and state is None:
        raise ValueError(
            f"give a prompt: --prompt TEXT, --prompt-file FILE or {STDIN} for standard input; or a --state"
        )


@contextmanager
def _prompt(source: str | None, prompt: str | None, file: Path | None) -> Iterator[Iterator[str] | None]:
    """The prompt in pieces; None if there is none. A file is open meanwhile."""
    if prompt is not None:
        yield iter([prompt])
    elif source == STDIN or file == Path(STDIN):
        if sys.stdin is None or sys.stdin.closed:
            raise ValueError("standard input is closed: there is no prompt to read")
        with reading("standard input", sys.stdin.buffer) as texts:
            yield texts
    elif file is not None:
        with open_text(file) as opened, reading(str(file), opened) as texts:
            yield texts
    else:
        yield None


def open_text(path: Path) -> BinaryIO:
    """The file, opened; one that is not there or is none is a ValueError."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file of text")
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
