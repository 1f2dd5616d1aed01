"""`varla report`: what the reproduction found, as a page, from records alone."""

from pathlib import Path
from typing import Annotated

import typer

from varla.cli.output import say, show, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla report --out runs/report/index.html")(report)


def report(
    reports: Annotated[Path, typer.Option(help="Folder of the records.", metavar="FOLDER")] = Path("reports"),
    out: Annotated[Path, typer.Option(help="The page.", metavar="FILE")] = Path("runs/report/index.html"),
    docs: Annotated[
        bool, typer.Option("--docs", help="Also rewrite docs/reproduction.md, its figures and the README's rows.")
    ] = False,
) -> None:
    """Write the report of the reproduction: every claim with its verdict, charts, settings, machines. Runs nothing."""
    from varla.experiments.items import ITEMS
    from varla.report.reproduction import gather, markdown, page

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is the page, FILE.html, got {out.name!r}")
    if not gather.recorded(reports):
        raise ValueError(
            f"there are no records in {reports}: make them with `varla reproduce --preset quick`, "
            "or name their folder with --reports"
        )
    found = gather.gather(ITEMS, reports)
    written = [page.write(found, out)]
    if docs:
        written += markdown.write(found, Path())
    show(table(("verdict", "claims"), [(name, str(n)) for name, n in found.counts.items()], right=("claims",)))
    for path in written:
        say(f"written  {path}")
