"""`varla train-lm`: a language model from text, through Hugging Face's Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from varla.cli.kinds import LM, check_kind
from varla.cli.options import Config, LMChanges, Resume, ShowConfig, check_resume, place, speaks
from varla.cli.output import say, show, table
from varla.cli.streams import discard_output, write
from varla.runs.outcomes import Interrupted

EXAMPLE = ["book.txt"]  # text, where none is named yet


def train_lm(
    config: Config = None,
    settings: LMChanges = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", metavar="FOLDER", parser=place)] = None,
    resume: Resume = None,
    show_config: ShowConfig = False,
) -> None:
    """Train a language model on text. Checkpoints, the model and a record go to the run's folder."""
    from varla.lm.settings import from_dict
    from varla.runs.settings import load, override

    check_resume(resume, config, settings, out)
    folder = resume or out
    if resume is not None:
        check_kind(resume, LM, f"resume it with `varla train --resume {resume}`")
    if show_config:
        show_settings(config, settings or (), resume)
        return
    if folder is None:
        raise ValueError("--out is needed: the folder that the model goes to")
    chosen = None if resume else from_dict(override(load(config) if config else {}, settings or ()))
    from varla.lm.training import read_settings, train

    try:
        record = train(chosen or read_settings(folder), folder, resume=resume is not None)
    except BrokenPipeError:  # the Trainer prints what it logs
        discard_output()
        how = f"varla train-lm --resume {folder}"
        raise Interrupted(f"standard output was closed; resume from the newest checkpoint with: {how}") from None
    if not speaks():
        return
    rows = [
        (context, f"{found['bits per byte']:.4f}", f"{found['perplexity']:.3f}")
        for context, found in record["scores"].items()
    ]
    say(f"model    {folder / 'model'}: {record['parameters']:,} parameters, {record['steps']} steps")
    if rows:
        headers = ("context", "bits per byte", "perplexity")
        show(table(headers, rows, right=headers))


def show_settings(config: Path | None, settings: Sequence[str], resume: Path | None) -> None:
    """Print all settings. They need no text to be shown."""
    from varla.cli.show_config import language_settings
    from varla.lm.settings import check_train, from_dict
    from varla.lm.training import read_settings
    from varla.runs.settings import load, override

    if resume is not None:
        chosen = read_settings(resume)
    else:
        values = override(load(config) if config else {}, settings)
        text = {"train": EXAMPLE, **(values.get("data") or {})}
        chosen = from_dict({**values, "data": text})
    check_train(chosen.train)  # what is printed can be used
    write(language_settings(chosen))
