"""docs/reproduction.md, its figures and the README's rows are what the committed records give."""

from pathlib import Path

import pytest

from reproduction.items import ITEMS
from reproduction.report import charts, markdown, page
from reproduction.report.gather import gather, recorded

ROOT = Path(__file__).parent.parent.parent
RECORDED = recorded(ROOT / "reports")
STALE = "out of date: run `varla report --docs` and commit what it writes"


@pytest.fixture(scope="module")
def report():
    return gather(ITEMS, ROOT / "reports")


def test_the_document_is_up_to_date(report):
    document = ROOT / markdown.DOCUMENT
    if RECORDED:
        assert document.exists(), STALE
        assert document.read_text(encoding="utf-8") == markdown.document(report), STALE
    else:  # nothing to say yet
        assert not document.exists()


def test_the_rows_of_the_readme_are_up_to_date(report):
    text = (ROOT / markdown.README).read_text(encoding="utf-8")
    if RECORDED:
        assert text == markdown.insert(text, markdown.block(report)), STALE
    else:
        assert f"{markdown.BEGIN}\n{markdown.END}" in text


def test_the_figures_are_up_to_date(report):
    wanted = {
        f"{drawing.figure.name}.svg": charts.stamp(drawing.figure)
        for section in report.sections
        for drawing in section.drawings
        if RECORDED and charts.drawable(drawing.figure)
    }
    found = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / markdown.PICTURES).glob("*.svg")}
    assert set(found) == set(wanted), STALE
    for name, stamp in wanted.items():
        assert found[name].endswith(f"{stamp}\n"), f"{name} is {STALE}"


def test_the_page_of_the_real_items_is_complete(report):
    text = page.render(report)
    for row in report.rows:
        assert f'id="{row.anchor}"' in text
