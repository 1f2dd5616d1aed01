"""The demo's page: what it says, and how it looks in Chromium: light, dark, on a phone, without a request."""

import pytest

from tests.browser import needs_chromium, open_page, visit, window  # noqa: F401 - fixtures
from tests.demo.cases import results
from varla.demo import WATCH, sentences, write
from varla.demo.runs import PAIRS

CHARTS = ("accuracy", "curves", "context-length")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(results(), tmp_path_factory.mktemp("demo"))


def test_the_page_begins_with_the_computed_sentences(written):
    text = written["page"].read_text()
    places = [text.index(sentence) for sentence in sentences(results())]
    assert places == sorted(places)
    assert places[0] < text.index("<h2")
    assert f'href="{WATCH}"' in text
    assert written["curves"].read_bytes().startswith(b"\x89PNG")


def test_the_page_says_what_was_the_same_and_where_it_is_weak(written):
    text = written["page"].read_text()
    for part in ("tuned: short convolution", "42, 43, 44", "Where this demo is weak", "seeds are few"):
        assert part in text


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1300])
def test_the_page_fits_and_its_charts_are_drawn(visit, written, width, scheme):  # noqa: F811
    page = visit(written["page"], width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in CHARTS:
        assert 250 < page.locator(f"#{name} svg").bounding_box()["width"] <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


@needs_chromium
def test_every_models_answers_are_marked_by_colour_and_symbol(visit, written):  # noqa: F811
    page = visit(written["page"])
    found = results()
    assert page.locator(".hit").count() == sum(result.right for result in found)
    assert page.locator(".miss").count() == sum(PAIRS - result.right for result in found)
    assert all(text.startswith("✓ v") for text in page.locator(".hit").all_inner_texts())
    assert set(page.locator(".miss").all_inner_texts()) == {"✗ v99"}
    colours = [page.locator(kind).first.evaluate("e => getComputedStyle(e).color") for kind in (".hit", ".miss")]
    assert colours[0] != colours[1]
    assert page.locator(".pairs li").count() == PAIRS
    total = page.get_by_role("group", name="Queries and answers").locator("tbody tr").last.inner_text()
    assert f"{PAIRS} of {PAIRS}" in total


@needs_chromium
def test_the_state_chart_has_a_growing_line_and_flat_ones(visit, written):  # noqa: F811
    page = visit(written["page"])
    heights = {}
    for path in page.locator("#context-length svg .mark-line path").all():
        heights[path.get_attribute("stroke")] = path.evaluate("e => e.getBBox().height")
    assert heights.pop("#808080") > 100  # softmax
    assert len(heights) == len(results()) - 1
    assert max(heights.values()) < 5
