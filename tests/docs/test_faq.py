"""The page of errors: every message that it quotes is raised by the example above it, and every fix works."""

import re
from fnmatch import fnmatchcase

import pytest

from tests.cli.cases import varla
from tests.docs.pages import DOCS, blocks, commands

INTRODUCTION, *SECTIONS = re.split(r"^### ", (DOCS / "faq.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
ENTRIES = {section.partition("\n")[0]: blocks(section) for section in SECTIONS}
IN_PYTHON = [title for title, found in ENTRIES.items() if found[0][0] == "python"]
IN_SHELL = [title for title, found in ENTRIES.items() if found[0][0] == "sh"]


@pytest.fixture(scope="module")
def names():
    """What the page defines, so far: an entry may use what an earlier one has made."""
    found: dict = {}
    ((_, code),) = blocks(INTRODUCTION)
    exec(compile(code, "faq.md", "exec"), found)
    for title in IN_PYTHON:
        (_, failing), _, *fixes = ENTRIES[title]
        found[title] = _error(failing, found)
        for _, fix in fixes:
            exec(compile(fix, f"faq.md: {title}", "exec"), found)
    return found


def _error(code, names):
    """The error of the last statement, as Python prints it."""
    try:
        exec(compile(code, "faq.md", "exec"), names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def like(message, quoted):
    """Whether a message is the quoted one, where ... stands for any text."""
    return fnmatchcase(message, re.sub(r"([*?[])", r"[\1]", quoted.strip()).replace("...", "*"))


@pytest.mark.parametrize("title", IN_PYTHON)
def test_the_message_is_raised_and_the_fix_works(title, names):
    quoted = ENTRIES[title][1][1]
    assert like(names[title], quoted), names[title]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What the commands of the page complain about, by the entry's title: the last command of each."""
    folder = tmp_path_factory.mktemp("faq")
    (folder / "short.txt").write_text("Hello, world!")
    (folder / "runs/book/model").mkdir(parents=True)
    (folder / "runs/book/model/config.json").write_text("{}")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for title in IN_SHELL:
            *setup, last = commands(ENTRIES[title][0][1])
            assert all(varla(*each).exit_code == 0 for each in setup)
            result = varla(*last)
            assert result.exit_code != 0, title
            found[title] = " ".join(result.stderr.split())
    return found


@pytest.mark.parametrize("title", IN_SHELL)
def test_the_command_complains_in_these_words(title, complaints):
    assert like(complaints[title], ENTRIES[title][1][1]), complaints[title]


def test_a_changed_message_is_found():
    assert like("ValueError: x must be [B, T], got 3", "ValueError: x must be [B, T], got ...")
    assert not like("ValueError: x must be [B, T] or so", "ValueError: x must be [B, T], got ...")
    assert not like("no error", "ValueError: ...")


def test_the_page_has_enough_entries():
    assert len(ENTRIES) >= 15
    for title, found in ENTRIES.items():
        assert found[1][0] == "text", title
