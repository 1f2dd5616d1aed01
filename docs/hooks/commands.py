"""The page of the command line, written from the commands' own help at build time."""

import re
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

PAGE = "reference/cli.md"
PLACE = re.compile(r"<!-- commands: .* -->")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the commands into their page."""
    if page.file.src_uri != PAGE:
        return markdown
    from typer.main import get_command

    from varla.cli.main import app

    written, places = PLACE.subn(lambda _: "\n".join(_section(get_command(app), "varla")), markdown)
    if places != 1:
        raise ValueError(f"{PAGE} must say once where the commands are to be written, as {PLACE.pattern}")
    return written


def _section(command: Any, name: str) -> Iterator[str]:
    """A command and the commands in it: its help, what it takes, examples."""
    context = command.make_context(name, [], resilient_parsing=True)
    records = [each.get_help_record(context) for each in command.params if not getattr(each, "hidden", False)]
    if name != "varla":
        yield f"## {name}\n"
    yield f"{_plain(command.help or '')}\n"
    if records:
        yield "| | |\n|---|---|"
        yield from (f"| {_code(names)} | {_cell(meaning)} |" for names, meaning in records)
        yield ""
    examples = [_plain(each).removeprefix("Example: ") for each in (command.epilog or "").split("\n\n") if each]
    if examples:
        yield "\n".join(["```sh", *examples, "```\n"])
    for key, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from _section(each, f"{name} {key}")


def _plain(text: str) -> str:
    """Help without what Typer and Rich read: marks of lines to keep, escaped brackets."""
    return text.replace("\b", "").replace("\\[", "[").strip()


def _code(names: str) -> str:
    """Names and kind of an option or argument as code, in a cell of a table."""
    return f"<code>{names.replace('&', '&amp;').replace('<', '&lt;').replace('|', '&#124;')}</code>"


def _cell(meaning: str) -> str:
    return _plain(" ".join(meaning.split())).replace("|", "\\|")
