"""Errors as one red line and an exit code. Only unexpected ones show a traceback, or all with --traceback."""

import errno
from typing import Any

import typer
from typer.core import TyperGroup

from varla.cli.doubt import doubt
from varla.cli.output import complain
from varla.runs.outcomes import EXIT_CODES, EXIT_USAGE, INTERRUPTED, Diverged, Interrupted


class Commands(TyperGroup):
    """The commands, with errors that a person can act on shown as a line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(EXIT_CODES[INTERRUPTED]) from None
        except Exception as error:
            found = explain(error)
            if found is None or ctx.params.get("debug"):
                raise
            message, code = found
            complain(message)
            raise typer.Exit(code) from None


def explain(error: Exception) -> tuple[str, int] | None:
    """(message, exit code) of an error that a person can act on; None for a bug."""
    if isinstance(error, (ValueError, TypeError)):
        return f"{error}{doubt(error)}", EXIT_USAGE
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", EXIT_USAGE
    if isinstance(error, ImportError) and not (error.name or "").startswith("varla"):
        return f"this command needs a package that is not installed: {error}", EXIT_USAGE
    if isinstance(error, (Diverged, Interrupted)):
        return str(error), EXIT_CODES[error.status]
    return None
