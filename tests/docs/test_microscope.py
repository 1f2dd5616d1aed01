"""The article on `varla watch` shows a page of it, live, in the site's colours; the Markdown shows a picture of it."""

import json

import pytest

from tests.browser import needs_chromium, open_page, window  # noqa: F401 - fixtures
from tests.docs.pages import DOCS
from tests.docs.test_browser import PHONE, SCREEN, visit  # noqa: F401 - a fixture
from tests.watch.test_page_browser import ready, until

pytestmark = needs_chromium


def live(page):
    """The frame with the page, once it has computed everything."""
    page.wait_for_selector(".microscope iframe")
    (frame,) = (each for each in page.frames if "microscope.html" in each.url)
    ready(frame)
    return frame


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_the_page_is_there_and_fits(visit, width, scheme):  # noqa: F811
    page = visit("watch.html", width=width, color_scheme=scheme)
    frame = live(page)
    box = page.locator(".microscope iframe").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert 500 < box["height"] < 900  # the window of these tests is 900 high
    assert frame.evaluate("document.documentElement.scrollWidth") <= box["width"]
    assert frame.locator(".said").inner_text() == "Asked here: the right answer is v15, the model says v15. Right."
    assert frame.locator("#now").bounding_box()["width"] > 100
    until(frame, f"document.documentElement.dataset.theme === '{scheme}'")  # the site tells the frame


def test_it_is_used_by_keyboard_and_by_its_sliders(visit):  # noqa: F811
    page = visit("watch.html")
    frame = live(page)
    token = frame.locator("#now-text")
    assert token.inner_text() == "12 of 13 “k101”"
    page.locator(".md-content a:has-text('in the box')").focus()
    for _ in range(12):  # backwards, over the copy buttons of the code, into the page
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.tagName") == "IFRAME":
            break
    page.keyboard.press("Shift+Tab")  # from the summary of the table to the current token
    page.keyboard.press("ArrowLeft")
    until(frame, "find('now-text').textContent.startsWith('11 of 13')")
    frame.locator("#now").fill("3")
    ready(frame)
    assert token.inner_text() == "4 of 13 “v121”"
    assert frame.locator("#summary").inner_text().startswith("Token 4 of 13, “v121”. Of 4 keys so far")


def test_it_has_the_colours_that_the_site_is_switched_to(visit):  # noqa: F811
    page = visit("watch.html", color_scheme="light")
    frame = live(page)
    for wanted, title in (("dark", "Dark colours"), ("light", "Light colours")):
        page.get_by_title(title).click()
        until(frame, f"document.documentElement.dataset.theme === '{wanted}'")
        assert frame.locator("html").get_attribute("data-theme") == wanted


def test_it_opens_alone(visit):  # noqa: F811
    page = visit("watch.html")
    page.get_by_role("link", name="Open it alone").click()
    page.wait_for_url("**/microscope.html*")
    ready(page)
    assert page.locator("h1").inner_text() == "The memory, token by token"
    assert page.locator("#now-text").inner_text() == "12 of 13 “k101”"


def test_the_home_page_leads_to_it(visit):  # noqa: F811
    page = visit()
    page.locator("article").get_by_role("link", name="Watching a memory").click()
    page.wait_for_url("**/watch.html")
    assert live(page).locator("#now-text").inner_text() == "12 of 13 “k101”"


def test_what_is_kept_of_it_is_small(site):
    assert (DOCS / "figures" / "watch.json").stat().st_size < 50_000
    assert not (site / "figures" / "watch.json").exists()
    page = (site / "microscope.html").read_text(encoding="utf-8")
    data = json.loads((DOCS / "figures" / "watch.json").read_text(encoding="utf-8"))
    assert json.loads(page.split('id="data">')[1].split("</script>")[0]) == data
    assert [model["name"] for model in data["models"]] == ["recall"]
    for name in ("watch.png", "watch-dark.png"):
        assert (DOCS / "figures" / name).stat().st_size < 300_000
