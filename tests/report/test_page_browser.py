"""The standard of pages in Chromium: charts in light and dark, on a phone and a desk, contents, folds, paper."""

# ruff: noqa: F811 - fixtures are imported, and then named by arguments
import pytest

from tests.browser import needs_chromium, open_page, visit, window  # noqa: F401 - fixtures
from tests.report.test_page import CHART, NUMBERS
from varla.report.page import Chart, Fold, Page, Section, write

pytestmark = needs_chromium

FILLER = [f"Line {i}." for i in range(40)]
PAGE = Page(
    "A page",
    "VLA is right; linear attention is not.",
    [
        Section("Curves", [CHART], "first"),
        Section("A long one", [NUMBERS, *FILLER], "second"),
        Section("Folded", [Fold("On demand", [Chart("folded", "Folded", CHART.spec)]), *FILLER], "third"),
    ],
    facts={"processor": "Imaginary 9000"},
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return write(PAGE, tmp_path_factory.mktemp("page") / "page.html").as_uri()


# The width of an element; nothing while it is not there. In one step: a chart may be drawn again between two.
WIDTH = "(selector) => document.querySelector(selector)?.getBoundingClientRect().width"


def colour(page, selector, name):
    script = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
    return page.evaluate(script, [selector, name])


@pytest.mark.parametrize("width", [360, 390, 768, 1300])
def test_nothing_is_wider_than_the_screen_and_charts_fit(visit, address, width):
    page = visit(address, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#curves svg").bounding_box()
    assert 300 < box["width"] <= width
    # Nothing of the chart is beyond its picture, where it would be cut.
    for part in page.locator("#curves svg text").all():
        inner = part.bounding_box()
        assert inner["x"] + inner["width"] <= box["x"] + box["width"] + 1
        assert inner["y"] + inner["height"] <= box["y"] + box["height"] + 1


@pytest.mark.parametrize(("scheme", "text"), [("light", "rgb(27, 31, 36)"), ("dark", "rgb(229, 232, 236)")])
def test_charts_are_light_or_dark_with_their_page(visit, address, scheme, text):
    page = visit(address, color_scheme=scheme)
    assert colour(page, "body", "color") == text
    assert colour(page, "#curves svg .role-axis-label text", "fill") == text
    assert colour(page, "#curves svg .role-legend-label text", "fill") == text
    assert colour(page, "#curves svg", "backgroundColor") == "rgba(0, 0, 0, 0)"


def test_a_page_that_turns_dark_takes_its_charts_along_and_paper_is_white(visit, address):
    page = visit(address)
    page.emulate_media(color_scheme="dark")
    assert colour(page, "#curves svg .role-axis-label text", "fill") == "rgb(229, 232, 236)"
    page.emulate_media(color_scheme="dark", media="print")
    assert colour(page, "#curves svg .role-axis-label text", "fill") == "rgb(27, 31, 36)"
    assert not page.locator(".contents").is_visible()


def test_the_contents_stay_in_sight_and_say_where_the_reader_is(visit, address):
    for width in (390, 1300):
        page = visit(address, width=width)
        page.get_by_role("navigation", name="Contents").get_by_text("Folded").click()
        page.wait_for_function("document.querySelector('.contents [aria-current]')?.textContent === 'Folded'")
        assert page.locator(".contents").bounding_box()["y"] >= 0
        assert page.locator("#third-title").bounding_box()["y"] >= 0
        assert page.locator(".contents [aria-current]").count() == 1


def test_a_chart_in_a_fold_is_drawn_when_it_is_opened(visit, address):
    page = visit(address)
    assert page.locator("#folded svg").count() == 0
    page.get_by_text("On demand").click()
    page.wait_for_function(f"({WIDTH})('#folded svg') > 300")
    page = visit(f"{address}#folded")  # a link opens the fold itself
    page.wait_for_selector("#folded svg")


def test_a_chart_is_drawn_again_for_another_width(visit, address):
    page = visit(address)
    assert page.evaluate(WIDTH, "#curves svg") > 390
    page.locator("#curves svg").evaluate("svg => { svg.dataset.old = 'yes'; }")
    page.set_viewport_size({"width": 390, "height": 800})
    # At first Vega makes the chart narrower. A moment later the page takes it away and draws another one.
    page.wait_for_function(f"200 < ({WIDTH})('#curves svg:not([data-old])')")
    assert page.evaluate(WIDTH, "#curves svg") < 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_point_says_what_it_is_in_the_colours_of_the_page(visit, address):
    page = visit(address, color_scheme="dark")
    page.locator("#curves svg .mark-symbol.role-mark path").last.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "step" in page.locator("#vg-tooltip-element").inner_text()
    assert colour(page, "#vg-tooltip-element", "backgroundColor") == "rgb(29, 33, 37)"


def test_the_keyboard_reaches_contents_folds_and_tables(visit, address):
    page = visit(address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.tagName + ' ' + document.activeElement.className"))
    assert {"A ", "SUMMARY ", "DIV wide"} <= set(seen)
    page.locator("summary", has_text="The numbers").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("group", name="Accuracy by run").first.is_visible()
