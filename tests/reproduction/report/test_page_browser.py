"""The page in Chromium: tiles lead to claims, charts are drawn, the table sorts and filters, it fits and prints."""

# ruff: noqa: F811 - fixtures are imported, and then named by arguments
from itertools import pairwise

import pytest

from reproduction.items import ITEMS
from reproduction.report import page as pages
from reproduction.report.findings import HEADLINE
from reproduction.report.gather import gather
from tests.browser import needs_chromium, open_page, visit, window  # noqa: F401 - fixtures
from tests.reproduction.report import fabricated

pytestmark = needs_chromium

IDS = [claim.id for item in fabricated.ITEMS for claim in item.claims]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return pages.write(gather(fabricated.ITEMS, fabricated.write(folder / "reports")), folder / "index.html").as_uri()


@pytest.fixture
def table(visit, address):
    """Open the page with the table of all claims unfolded."""

    def go(**options):
        page = visit(address, **options)
        page.locator("#claims summary").click()
        return page

    return go


def shown(page):
    """Ids of the claims that can be seen, in their order."""
    script = "rows => rows.filter((row) => row.getClientRects().length && row.offsetHeight > 10)"
    script += ".map((row) => row.dataset.claim)"
    return page.locator("#claims-table tbody tr").evaluate_all(script)


def header(page, name):
    return page.locator("#claims-table th", has_text=name).first


def test_every_chart_is_drawn(visit, address):
    page = visit(address)
    charts = page.locator(".chart")
    assert charts.count() == 6  # three figures, shown first and in their sections
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


def test_every_column_sorts_both_ways(table):
    page = table()
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


def test_numbers_sort_as_numbers_and_ids_by_the_numbers_in_them(table):
    page = table()
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


def test_sorting_by_keyboard(table):
    page = table()
    page.locator("#search").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "claim"
    page.keyboard.press("Enter")
    assert header(page, "claim").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    assert header(page, "claim").get_attribute("aria-sort") == "descending"
    assert shown(page)[0] == "P12-unit"


def test_filter_by_verdict(table):
    page = table()
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


def test_search_finds_all_the_words_and_adds_to_the_filter(table):
    page = table()
    page.locator("#search").fill("N = 8 recalls")
    assert shown(page) == ["P7-vla-8", "P7-linear-8", "P7-softmax-8"]
    page.locator("input[value='not reproduced']").uncheck()
    assert shown(page) == ["P7-vla-8", "P7-linear-8"]
    page.locator("#search").press("Enter")  # submits nothing
    assert shown(page) == ["P7-vla-8", "P7-linear-8"]
    page.locator("#search").fill("no such claim")
    assert page.locator("#none").is_visible()


SEEN = """id => { const r = document.getElementById(id).getBoundingClientRect();
    return r.height > 10 && r.top >= 0 && r.bottom <= innerHeight; }"""


def test_a_tile_leads_to_its_claim_by_mouse_and_keyboard(visit, address):
    page = visit(address)
    assert page.locator("a.tile").count() == len(IDS)
    tile = page.get_by_role("link", name="P12-unit, false: the Jacobian has norm 1")
    assert not page.locator("#P12-unit").is_visible()  # it is in a fold
    tile.click()
    page.wait_for_function(f"({SEEN})('P12-unit')")
    page.get_by_role("link", name="P7-vla-8, reproduced: vla recalls n = 8").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"({SEEN})('P7-vla-8')")
    assert page.url.endswith("#P7-vla-8")


@pytest.mark.parametrize("width", [390, 1300])
def test_a_tile_says_what_it_stands_for_when_it_is_pointed_at_or_has_the_focus(visit, address, width):
    page = visit(address, width=width)
    tip = page.locator("#tip")
    assert not tip.is_visible()
    last = page.locator("a.tile[href='#P7-softmax-8']")
    last.hover()
    assert tip.inner_text().startswith("P7-softmax-8: not reproduced\nsoftmax recalls n = 8 pairs")
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    page.locator("a.tile").first.focus()
    assert tip.inner_text().startswith("P7-vla-24: not run")


def test_a_verdict_has_a_symbol_and_a_colour_of_its_own(visit, address):
    looks = (
        visit(address)
        .locator("a.tile")
        .evaluate_all(
            "tiles => tiles.map((tile) => [tile.innerText.trim().split('\\n')[0][0], getComputedStyle(tile).color])"
        )
    )
    assert len({symbol for symbol, _ in looks}) == len({colour for _, colour in looks}) == 5
    assert len({tuple(look) for look in looks}) == 5


def test_the_first_screen_has_the_result_and_no_large_table(visit, address):
    page = visit(address)
    first = page.evaluate(
        "[...document.querySelectorAll('h1, .tile')].every((e) => e.getBoundingClientRect().bottom < 900)"
    )
    assert first
    assert not page.locator("#claims-table").is_visible()


def test_permalinks_lead_to_their_claim(visit, address):
    page = visit(f"{address}#P12-later")
    assert page.evaluate(SEEN, "P12-later")
    page = visit(f"{address}#machines")
    assert page.evaluate("scrollY") > 500  # where it is with the charts above it drawn
    page.evaluate("location.hash = 'P12-unit'")
    page.wait_for_function(f"({SEEN})('P12-unit')")
    page.locator("#claims summary").click()
    page.locator("tr[data-claim='P7-vla-8'] a").click()
    page.wait_for_function(f"({SEEN})('P7-vla-8')")


@pytest.mark.parametrize("width", [360, 390, 768, 1300])
def test_nothing_is_wider_than_the_screen_with_all_folds_open(visit, address, width):
    page = visit(address, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown(page) == IDS
    widths = "charts => charts.map((chart) => chart.getBoundingClientRect().width)"
    assert all(0 < each <= width for each in page.locator(".chart svg").evaluate_all(widths))


def test_on_a_phone_a_row_of_the_table_is_a_card_and_can_be_sorted(table):
    page = table(width=360)
    cells = page.locator("tr[data-claim='P7-vla-8'] td")
    boxes = [cell.bounding_box() for cell in cells.all() if cell.is_visible()]
    assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in pairwise(boxes))
    header(page, "claim").locator("button").click()
    assert shown(page)[0] == "P7-linear-8"


def test_print_shows_all_rows_and_no_controls(table):
    page = table()
    page.locator("#search").fill("softmax")
    assert len(shown(page)) == 1
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown(page) == IDS
    assert page.locator("#P12-unit").is_visible()
    assert not page.locator("#controls").is_visible()
    assert page.locator(".chart svg").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_in_the_dark_text_tiles_and_charts_are_dark(visit, address):
    page = visit(address, color_scheme="dark")
    style = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
    assert page.evaluate(style, ["body", "backgroundColor"]) == "rgb(20, 23, 26)"
    assert page.evaluate(style, [".chart svg", "backgroundColor"]) == "rgba(0, 0, 0, 0)"
    assert page.evaluate(style, [".chart svg .role-axis-label text", "fill"]) == "rgb(229, 232, 236)"
    assert page.evaluate(style, ["a.tile.reproduced", "backgroundColor"]) == "rgb(18, 53, 43)"


def test_the_page_of_the_real_items_opens(visit, tmp_path, request):
    report = gather(ITEMS, request.config.rootpath / "reports")
    page = visit(pages.write(report, tmp_path / "real.html"), width=360)
    assert page.locator("a.tile").count() == len(report.rows)
    assert page.locator(".lead").count() == len(HEADLINE)
    assert page.locator(".chart svg").count() == page.locator(".chart").count()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
