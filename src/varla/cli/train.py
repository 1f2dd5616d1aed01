"""`varla train`: one run, from a file, from the defaults, or from where it stopped."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.cli.kinds import LAB, check_kind
from varla.cli.options import Config, Device, Resume, Settings, check_device, check_resume, speaks
from varla.cli.output import accuracies, say, share
from varla.cli.streams import discard_output

if TYPE_CHECKING:
    from varla.training import RunConfig
    from varla.training.progress import Progress


def train(
    config: Config = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/MECHANISM-TASK-SIZE-SEED.", metavar="FOLDER")
    ] = None,
    resume: Resume = None,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train one model on one task. Accuracies, checkpoints and a record go to the run's folder."""
    from varla import training
    from varla.training.progress import choose

    check_device(device)
    check_resume(resume, config, settings, out)
    if resume is None:
        chosen = read(config, settings or ())
        folder = out or default_folder(chosen)
        if training.Run(folder).config_file.exists():
            how = f"resume it with `varla train --resume {folder}`, or choose another folder with --out"
            raise training.RunError(f"{folder} already holds a run: {how}")
    else:
        check_kind(resume, LAB, f"resume it with `varla train-lm --resume {resume}`")
        chosen, folder = training.Run(resume).config(), resume
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

    progress.step = watched  # type: ignore[method-assign]
    return progress


def read(config: Path | None, settings: Sequence[str]) -> "RunConfig":
    """The settings in a file, or none, with the changes applied."""
    from varla import training

    values = training.complete(
        training.load(config) if config else {}, [text.partition("=")[0].strip() for text in settings]
    )
    return training.from_dict(training.override(values, settings))


def default_folder(config: "RunConfig") -> Path:
    """runs/<mechanism>-<task>-n<pairs>-s<seed>; a task without pairs is told apart by its length."""
    from varla.training import build_task

    task: Any = build_task(config)
    size = f"n{task.n}" if hasattr(task, "n") else f"t{task.seq_len}"
    return Path("runs") / f"{config.mechanism}-{task.name}-{size}-s{config.seed}"


def report(config: "RunConfig", found: dict[str, Any]) -> None:
    """Print accuracies, each beside chance on the very task."""
    from varla.training import build_task

    evaluations = build_task(config).evaluations()
    for name, value in accuracies(found).items():
        say(f"{name:<8} accuracy {share(value)}   chance {share(evaluations[name].chance)}")
