"""docs/reproduction/, its figures and the README's sentence are what the committed records give."""

import re
from pathlib import Path

import pytest

from reproduction.items import ITEMS
from reproduction.report import charts, markdown, page
from reproduction.report.gather import gather, recorded
from varla.report.page import render

ROOT = Path(__file__).parents[3]
RECORDED = recorded(ROOT / "reports")
STALE = "out of date: run `python -m reproduction report --docs` and commit what it writes"


@pytest.fixture(scope="module")
def report():
    return gather(ITEMS, ROOT / "reports")


def test_the_pages_are_up_to_date(report):
    wanted = markdown.documents(report) if RECORDED else {}
    found = {path.relative_to(ROOT) for path in (ROOT / markdown.FOLDER).glob("*.md")}
    assert found == set(wanted), STALE
    for path, text in wanted.items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is {STALE}"


def test_links_of_the_first_page_lead_to_a_claim():
    first = ROOT / markdown.OVERVIEW
    links = re.findall(r"\]\(([^)#]+)#([^)]+)\)", first.read_text(encoding="utf-8"))
    assert len(links) == 10
    for path, anchor in links:
        assert f'<a id="{anchor}"></a>' in (first.parent / path).read_text(encoding="utf-8")


def test_the_readme_counts_the_claims(report):
    assert markdown.summary(report.rows) in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


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
    text = render(page.make(report))
    for row in report.rows:
        assert f'id="{row.anchor}"' in text
