"""`varla train`: one run, from a file, from the defaults, or from where it stopped."""

import hashlib
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.cli.kinds import LAB, check_kind
from varla.cli.options import Changes, Config, Device, Resume, ShowConfig, check_device, check_resume, place, speaks
from varla.cli.output import accuracies, say, share
from varla.cli.streams import discard_output, write

if TYPE_CHECKING:
    from varla.training import RunConfig
    from varla.training.progress import Progress

_LONGEST = 100  # characters of a default folder's name


def train(
    config: Config = None,
    settings: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. Default: runs/ and a name from the settings.", metavar="FOLDER", parser=place
        ),
    ] = None,
    resume: Resume = None,
    device: Device = None,
    show_config: ShowConfig = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train one model on one task. Accuracies, checkpoints and a record go to the run's folder."""
    from varla import training
    from varla.training.progress import choose

    check_device(device)
    check_resume(resume, config, settings, out)
    if resume is not None:
        check_kind(resume, LAB, f"resume it with `varla train-lm --resume {resume}`")
        chosen, folder = training.Run(resume).config(), resume
    else:
        chosen = read(config, settings or ())
        folder = out or default_folder(chosen)
    if show_config:
        from varla.cli.show_config import lab_settings

        write(lab_settings(chosen))
        return
    if resume is None and training.Run(folder).config_file.exists():
        how = f"resume it with `varla train --resume {folder}`, or choose another folder with --out"
        raise training.RunError(f"{folder} already holds a run: {how}")
    if speaks():
        say(f"run      {folder}")
    shown = stop_without_reader(choose(quiet))
    record = training.train(chosen, folder, resume=resume is not None, progress=shown, device=device)
    if speaks():
        report(chosen, record["final"])


def stop_without_reader(progress: "Progress") -> "Progress":
    """The same progress. If its output is no longer read (`| head`), the run is saved and stopped as by Ctrl-C."""
    step = progress.step

    def watched(done: int, entry: dict[str, Any] | None) -> None:
        try:
            step(done, entry)
        except BrokenPipeError:
            discard_output()
            signal.raise_signal(signal.SIGINT)

    progress.step = watched  # type: ignore[method-assign, assignment]
    return progress


def read(config: Path | None, settings: Sequence[str]) -> "RunConfig":
    """The settings in a file, or none, with the changes applied."""
    from varla import training

    values = training.complete(
        training.load(config) if config else {}, [text.partition("=")[0].strip() for text in settings]
    )
    return training.from_dict(training.override(values, settings))


def default_folder(config: "RunConfig") -> Path:
    """runs/<mechanism>-<task>-n<pairs>-s<seed>, and what else differs from the defaults: another trial, another folder.

    The name of a task without pairs has its length instead: t<tokens>. Long names end in a hash.
    """
    from varla.training import RunConfig, build_task
    from varla.training.run import name_part

    task: Any = build_task(config)
    size = f"n{task.n}" if hasattr(task, "n") else f"t{task.seq_len}"
    name = f"{config.mechanism}-{task.name}-{size}-s{config.seed}"
    given, usual = config.to_dict(), RunConfig().to_dict()
    given["task"] = {key: value for key, value in given["task"].items() if key not in ("name", "n")}
    if not hasattr(task, "n"):
        given["task"].pop("seq_len", None)
    given["train"].pop("report_to", None)  # the same trial, wherever its metrics go
    changes = [config.preset] if config.preset != usual["preset"] else []
    for group in ("task", "model", "layer", "train"):
        changes += [
            f"{key}{name_part(x)}"
            for key, x in given[group].items()
            if key not in usual[group] or x != usual[group][key]
        ]
    whole = "-".join([name, *changes])
    if len(whole) > _LONGEST:
        digest = hashlib.blake2b(json.dumps(given, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
        whole = f"{name}-{digest}"
    return Path("runs") / whole


def report(config: "RunConfig", found: dict[str, Any]) -> None:
    """Print accuracies, each beside chance on the same task."""
    from varla.training import build_task

    evaluations = build_task(config).evaluations()
    for name, value in accuracies(found).items():
        say(f"{name:<8} accuracy {share(value)}   chance {share(evaluations[name].chance)}")
