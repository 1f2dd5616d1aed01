"""Tables and lines in terminals of any width."""

import io

import pytest
from rich.console import Console

from tests.cli.cases import varla
from varla.cli.output import table

HEADERS = ("run", "status", "what it is", "parameters")
ROWS = [("vla-mqar-n8-s42", "finished", "a mechanism with a long description", "4,992,000"), ("b", "diverged", "x", "")]


def drawn(width, headers=HEADERS, rows=ROWS, **options):
    screen = io.StringIO()
    Console(file=screen, width=width).print(table(headers, rows, right=("parameters",), **options), crop=False)
    return screen.getvalue()


@pytest.mark.parametrize("width", [20, 30, 40, 50, 60, 61, 70, 80, 100, 240])
def test_no_word_is_ever_broken(width):
    text = drawn(width)
    words = [word for row in (HEADERS, *ROWS) for cell in row for word in cell.split()]
    assert all(word in text for word in words)
    longest = len("parameters  vla-mqar-n8-s42")
    assert max(map(len, text.splitlines())) <= max(width, longest)


def test_a_wide_terminal_gets_a_table_and_a_narrow_one_lists():
    assert "│ vla-mqar-n8-s42 │" in drawn(80)
    assert drawn(40, title="two").splitlines() == [
        "two",
        "",
        "run         vla-mqar-n8-s42",
        "status      finished",
        "what it is  a mechanism with a long",
        "            description",
        "parameters  4,992,000",
        "",
        "run         b",
        "status      diverged",
        "what it is  x",
        "",
    ]


def test_a_table_without_rows():
    assert "run" in drawn(80, rows=[])
    assert drawn(10, rows=[]).strip() == ""


def test_control_characters_in_cells_are_symbols():
    assert "\x1b" not in drawn(80, rows=[("\x1b[2J", "a", "b", "c")])


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    ("command", "word"), [("models", "vocabulary"), ("mechanisms", "deltanet"), ("tasks", "chance")]
)
def test_listings_fit_a_terminal(command, word, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    result = varla(command)
    assert result.exit_code == 0
    assert all(len(line) <= width for line in result.stdout.splitlines() if line.startswith(("│", "┃")))
    assert word in result.stdout
