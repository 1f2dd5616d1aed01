"""The page in Chromium: charts are drawn, nothing is fetched, sorting, filters, permalinks work, it fits and prints."""

from itertools import pairwise

import pytest

from reproduction.items import ITEMS
from reproduction.report import page as pages
from reproduction.report.gather import gather
from tests.browser import browser, needs_chromium, open_page  # noqa: F401 - fixtures
from tests.reproduction.report import fabricated

pytestmark = needs_chromium

IDS = [claim.id for item in fabricated.ITEMS for claim in item.claims]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return pages.write(gather(fabricated.ITEMS, fabricated.write(folder / "reports")), folder / "index.html").as_uri()


@pytest.fixture
def visit(open_page):  # noqa: F811
    """Open a page when its charts are drawn."""

    def go(where, **options):
        page = open_page(where, **options)
        page.wait_for_selector("html[data-drawn]", timeout=20_000)
        return page

    return go


def shown(page):
    """Ids of the claims that can be seen, in their order."""
    script = "rows => rows.filter((row) => row.getClientRects().length && row.offsetHeight > 10).map((row) => row.id)"
    return page.locator("#claims-table tbody tr").evaluate_all(script)


def header(page, name):
    return page.locator("#claims-table th", has_text=name).first


def test_every_chart_is_drawn(visit, address):
    page = visit(address)
    charts = page.locator(".chart")
    assert charts.count() == 3
    for chart in charts.all():
        assert chart.locator("svg").count() == 1
        assert chart.locator("svg .mark-symbol path").count() >= 4
        assert chart.locator("svg").bounding_box()["width"] > 300
    assert page.locator("#figure-recall svg .mark-line path").count() >= 2
    assert page.locator("#figure-recall svg .mark-rule line").count() >= 2


def test_a_point_says_what_it_is(visit, address):
    page = visit(address)
    page.locator("#figure-recall svg .mark-symbol.role-mark path").last.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    text = page.locator("#vg-tooltip-element").inner_text()
    assert "source" in text
    assert "pairs n" in text


def test_every_column_sorts_both_ways(visit, address):
    page = visit(address)
    assert shown(page) == IDS
    for column in pages.COLUMNS:
        orders = {}
        for way in ("ascending", "descending"):
            header(page, column).locator("button").click()
            assert header(page, column).get_attribute("aria-sort") == way
            assert page.locator("th[aria-sort=none]").count() == len(pages.COLUMNS) - 1
            orders[way] = shown(page)
            assert sorted(orders[way]) == sorted(IDS)
        assert orders["ascending"] != orders["descending"], column


def test_numbers_sort_as_numbers_and_ids_by_the_numbers_in_them(visit, address):
    page = visit(address)
    header(page, "ours").locator("button").click()
    up = shown(page)
    assert up[:5] == ["P7-softmax-8", "P7-linear-8", "P7-vla-8", "P12-unit", "P12-growth"]
    header(page, "ours").locator("button").click()
    down = shown(page)
    assert down[:5] == up[:5][::-1]
    assert set(up[-2:]) == set(down[-2:]) == {"P7-vla-24", "P12-later"}  # nothing found: last either way
    header(page, "claim").locator("button").click()
    assert shown(page) == [
        "P7-linear-8", "P7-softmax-8", "P7-vla-8", "P7-vla-24", "P12-bounded", "P12-growth", "P12-later", "P12-unit",
    ]  # fmt: skip


def test_sorting_by_keyboard(visit, address):
    page = visit(address)
    page.locator("#search").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "claim"
    page.keyboard.press("Enter")
    assert header(page, "claim").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    assert header(page, "claim").get_attribute("aria-sort") == "descending"
    assert shown(page)[0] == "P12-unit"


def test_filter_by_verdict(visit, address):
    page = visit(address)
    boxes = page.locator("#controls input[type=checkbox]")
    labels = [" ".join(label.split()) for label in page.locator("#controls label.choice").all_inner_texts()]
    assert labels == [f"{pages.SYMBOLS[name]} {name} {n}" for name, n in fabricated.VERDICT_COUNTS.items()]
    page.get_by_label("reproduced with conditions").uncheck()
    page.locator("input[value='not run']").uncheck()
    assert shown(page) == [each for each in IDS if each not in ("P12-bounded", "P7-vla-24", "P12-later")]
    assert page.locator("#shown").inner_text() == "5 of 8 claims"
    for box in boxes.all():
        box.uncheck()
    assert shown(page) == []
    page.get_by_role("button", name="Show all").click()
    assert shown(page) == IDS


def test_search_finds_all_the_words_and_adds_to_the_filter(visit, address):
    page = visit(address)
    page.locator("#search").fill("N = 8 recalls")
    assert shown(page) == ["P7-vla-8", "P7-linear-8", "P7-softmax-8"]
    page.locator("input[value='not reproduced']").uncheck()
    assert shown(page) == ["P7-vla-8", "P7-linear-8"]
    page.locator("#search").press("Enter")  # submits nothing
    assert shown(page) == ["P7-vla-8", "P7-linear-8"]
    page.locator("#search").fill("no such claim")
    assert page.locator("#none").is_visible()


def test_permalinks_lead_to_their_claim(visit, address):
    page = visit(f"{address}#P12-later")
    box = "const r = document.getElementById(id).getBoundingClientRect()"
    seen = f"id => {{ {box}; return r.top >= 0 && r.bottom <= innerHeight }}"
    assert page.evaluate(seen, "P12-later")
    page = visit(f"{address}#machines")
    assert page.evaluate("scrollY") > 500  # where it is with the charts above it drawn
    page.locator("input[value='false']").uncheck()
    assert "P12-unit" not in shown(page)
    page.evaluate("location.hash = 'P12-unit'")
    page.wait_for_function("!document.getElementById('P12-unit').classList.contains('out')")
    page.wait_for_function(f"({seen})('P12-unit')")
    page.locator("#P7-vla-8 a").click()
    assert page.url.endswith("#P7-vla-8")


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_nothing_is_wider_than_the_screen(visit, address, width):
    page = visit(address, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown(page) == IDS
    for chart in page.locator(".chart svg").all():
        assert chart.bounding_box()["width"] <= width


def test_on_a_phone_a_claim_is_a_card_and_can_be_sorted(visit, address):
    page = visit(address, width=360)
    cells = page.locator("#P7-vla-8 td")
    boxes = [cell.bounding_box() for cell in cells.all() if cell.is_visible()]
    assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in pairwise(boxes))
    header(page, "claim").locator("button").click()
    assert shown(page)[0] == "P7-linear-8"


def test_print_shows_all_rows_and_no_controls(visit, address):
    page = visit(address)
    page.locator("#search").fill("softmax")
    assert len(shown(page)) == 1
    page.emulate_media(media="print")
    assert shown(page) == IDS
    assert not page.locator("#controls").is_visible()
    assert page.locator(".chart svg").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_in_the_dark_text_is_light_and_charts_keep_their_paper(visit, address):
    page = visit(address, color_scheme="dark")
    colour = "selector => getComputedStyle(document.querySelector(selector)).backgroundColor"
    assert page.evaluate(colour, "body") == "rgb(23, 25, 28)"
    assert page.evaluate(colour, ".chart") == "rgb(255, 255, 255)"


def test_the_page_of_the_real_items_opens(visit, tmp_path, request):
    report = gather(ITEMS, request.config.rootpath / "reports")
    page = visit(pages.write(report, tmp_path / "real.html"), width=360)
    assert len(shown(page)) == len(report.rows)
    assert page.locator(".chart svg").count() == page.locator(".chart").count()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
