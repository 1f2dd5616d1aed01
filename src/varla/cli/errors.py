"""Errors as one red line and an exit code. Only bugs show a traceback, or every error with --debug."""

import errno
import sys
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

import varla
from varla.cli import remedy
from varla.cli.output import complain, note
from varla.cli.streams import STANDARD_OUTPUT, discard_output
from varla.runs.outcomes import EXIT_CODES, EXIT_USAGE, FAILED, INTERRUPTED, Diverged, Interrupted
from varla.runs.writing import naming

_PACKAGE = Path(varla.__file__).parent
_DOUBT = " (not a check of varla's own: perhaps a bug; VARLA_DEBUG=1 shows where it comes from)"


class Commands(TyperGroup):
    """The commands, with errors that a person can act on shown as a line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line. Help is printed before any command is invoked, perhaps to a full disk."""
        try:
            with naming(STANDARD_OUTPUT):
                return super().main(*args, **kwargs)
        except OSError as error:
            complain(_system(error))
            discard_output()
            sys.exit(EXIT_USAGE)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(EXIT_CODES[INTERRUPTED]) from None
        except Interrupted as stopped:  # the run was saved: nothing went wrong
            note(str(stopped))
            raise typer.Exit(EXIT_CODES[INTERRUPTED]) from None
        except Exception as error:
            found = explain(error)
            if found is None or ctx.params.get("debug"):
                raise
            message, code = found
            if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
                discard_output()
                if error.errno == errno.EPIPE:  # the reader of `| head` has what it wanted
                    raise typer.Exit(EXIT_CODES[FAILED]) from None
            complain(message)
            raise typer.Exit(code) from None


def explain(error: Exception) -> tuple[str, int] | None:
    """(message, exit code) of an error that a person can act on; None for a bug."""
    if isinstance(error, Diverged):
        return str(error), EXIT_CODES[error.status]
    if isinstance(error, OSError):
        return _system(error), EXIT_USAGE
    if isinstance(error, (ValueError, TypeError)):
        return f"{error}{doubt(error)}", EXIT_USAGE
    if isinstance(error, ImportError) and not (error.name or "").startswith("varla"):
        found = remedy(error.name) if isinstance(error, ModuleNotFoundError) else ""  # errors of ours say it themselves
        return f"this command needs a package that is not installed: {error}{found}", EXIT_USAGE
    if type(error).__name__ == "SafetensorError":  # by its name: safetensors may not be installed
        return f"a file of tensors cannot be read or written: {error}", EXIT_USAGE
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _is_memory(error)):
        return f"out of memory: make the model, the batch or the context smaller ({_first_line(error)})", EXIT_USAGE
    if isinstance(error, RuntimeError) and "PytorchStreamWriter" in str(error):  # torch.save on a full disk
        return f"a checkpoint cannot be written: is the disk full? ({_first_line(error)})", EXIT_USAGE
    return None


def doubt(error: Exception) -> str:
    """What to add to the message of a ValueError or TypeError that no `raise` of varla's made; else nothing.

    Python and its libraries raise the same types for bugs of ours. But a wrong setting can cause them too, so not
    everybody is shown a traceback.
    """
    steps = traceback.extract_tb(error.__traceback__)
    if not steps or (_PACKAGE in Path(steps[-1].filename).parents and (steps[-1].line or "raise").startswith("raise")):
        return ""
    return _DOUBT


def _system(error: OSError) -> str:
    """The system's complaint, with the file if it names one."""
    files = [str(each) for each in (error.filename, error.filename2) if each is not None]
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not files:
        return f"{reason}, where this command writes"
    return f"{' -> '.join(files)}: {reason}" if files else reason


def _is_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: PyTorch has an error of its own for GPUs, and words for the rest."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
