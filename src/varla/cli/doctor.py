"""`varla doctor`: what is installed, whether every operator computes the right numbers here, and a verdict."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from varla.cli.listings import backend_table
from varla.cli.output import note, say, show, table
from varla.cli.streams import write
from varla.runs.outcomes import EXIT_CODES, FAILED

if TYPE_CHECKING:
    from varla.doctor import Check, Machine, Outcome, Report


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Versions, devices, and one operator.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, with every error.")] = False,
) -> None:
    """Check this machine: versions, devices, and the numbers of every operator against the reference in float64.

    Errors are relative, of outputs, final states and gradients. A line is the worst of all shapes. It is WRONG above
    1e-4 in float32 and 1.5e-2 in bfloat16, or if a check fails. The last paragraph is for a bug report.

    Exit code 0: all is well. 1: something is WRONG.
    """
    from varla.doctor import WRONG, Report, examine, plan, run_apart

    start = time.monotonic()
    machine = examine()
    if not as_json:
        _show_machine(machine)
    checks = plan(quick)
    outcomes: dict[Check, Outcome] = {}
    with _progress(checks) as advance:

        def done(outcome: "Outcome") -> None:
            outcomes[outcome.check] = outcome
            advance(outcome)

        run_apart(checks, done)
    report = Report(machine, [outcomes[check] for check in checks], time.monotonic() - start)
    if as_json:
        write(json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        _show_numbers(report)
    if report.verdict == WRONG:
        raise typer.Exit(EXIT_CODES[FAILED])


def _show_machine(machine: "Machine") -> None:
    rows = [(each.package, each.version or "none", each.supported, each.verdict) for each in machine.versions]
    show(table(("package", "version", "supported", "verdict"), rows))
    found = machine.found
    facts = [
        ("varla", f"{found['varla']}, commit {found['commit'] or 'unknown'}"),
        ("system", found["system"]),
        ("CPU", f"{found['processor']}, {found['cores']} cores, {found['threads']} threads of PyTorch"),
        ("PyTorch built for", "the CPU" if machine.cuda is None else f"CUDA {machine.cuda}"),
        *((gpu.device, f"{gpu}, ptxas {gpu.ptxas or 'unknown'}") for gpu in machine.gpus),
        *((each.use, f"{_gib(each.free)}, {each.path}") for each in machine.folders),
        *machine.variables.items(),
    ]
    show(table(("", "value"), facts if machine.gpus else [*facts, ("gpu", "none")]))
    show(backend_table())


def _gib(size: int | None) -> str:
    return "free space unknown" if size is None else f"{size / 2**30:,.1f} GiB free"


def _show_numbers(report: "Report") -> None:
    headers = ("what", "error", "bound", "verdict")
    for device, lines in report.lines().items():
        rows = [
            (each.what, f"{each.error:.1e} ({each.worst})" if each.worst else "none", f"{each.bound:.1e}", each.verdict)
            for each in lines
        ]
        show(table(headers, rows, right=("bound",), title=f"on {device}"))
    say()
    for line in report.summary():
        say(line)


@contextmanager
def _progress(checks: Sequence["Check"]) -> Iterator[Callable[["Outcome"], None]]:
    """A function that is told of every outcome: a bar in a terminal, else a line for every quarter. All on stderr."""
    screen = Console(stderr=True, highlight=False)
    if screen.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task("starting", total=len(checks))
            yield lambda outcome: bar.update(task, advance=1, description=outcome.check.name)
        return
    count, quarter = 0, 0

    def line(outcome: "Outcome") -> None:
        nonlocal count, quarter
        count += 1
        if 4 * count // len(checks) != quarter:
            quarter = 4 * count // len(checks)
            note(f"{count} of {len(checks)} checks done")

    yield line
