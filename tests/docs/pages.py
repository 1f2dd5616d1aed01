"""The Markdown pages of the site, and how their examples are run."""

import re
import shlex
from pathlib import Path

from tests.cli.cases import varla

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(text):
    """(language, code) of every fenced block."""
    return FENCE.findall(text)


def commands(code):
    """The arguments of every `varla` command in a block of shell; other commands are not run."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.startswith("varla ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def run_page(page, names):
    """Run the blocks of a page in their order, in one namespace; returns what its commands printed."""
    printed = []
    for language, code in blocks((DOCS / page).read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, page, "exec"), names)
        elif language == "sh":
            for arguments in commands(code):
                result = varla(*arguments)
                assert result.exit_code == 0, (arguments, result.output)
                printed.append(result.stdout)
    return printed
