"""The site in Chromium, from its files: nothing is fetched, nothing complains, everything fits, the search finds."""

import pytest

from tests.browser import needs_chromium, open_page, window  # noqa: F401 - fixtures

pytestmark = needs_chromium

PHONE, SCREEN = 390, 1300


@pytest.fixture
def visit(open_page, site):  # noqa: F811
    """Open a page of the site by its path."""
    return lambda path="index.html", **options: open_page(site / path, **options)


def search(page, words):
    """Type into the search; returns the addresses of what is found."""
    page.keyboard.press("/")  # the theme's key for it
    page.wait_for_function("document.activeElement.dataset.mdComponent === 'search-query'")
    page.keyboard.insert_text(words[:-1])  # which asks for nothing yet: no results are those of half the words
    page.keyboard.press(words[-1])
    page.wait_for_function("document.querySelector('.md-search-result__meta').textContent.includes('matching')")
    page.locator(".md-search-result__link").first.wait_for(state="attached")
    return page.locator(".md-search-result__link").evaluate_all("links => links.map((link) => link.href)")


def test_no_page_complains_or_is_wider_than_a_phone(visit, site):
    page = visit(width=PHONE)
    paths = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    assert len(paths) > 40
    for path in paths:
        page.goto((site / path).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, path
        # The theme cuts off what is too wide for the page: look at the parts, too. Code and tables scroll.
        parts = "document.querySelectorAll('article > :is(p, h1, h2, h3, ul, ol, pre, div, details)')"
        widest = f"Math.max(...[...{parts}].map((part) => part.getBoundingClientRect().right))"
        assert page.evaluate(widest) <= PHONE, path


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_the_search_finds_without_a_server(visit, site, width):
    page = visit("tutorials/recall.html", width=width)
    found = search(page, "delta_rule")
    wanted = (site / "reference" / "operators.html").as_uri()
    assert any(each.startswith(wanted) for each in found), found


def test_the_search_leads_to_the_page(visit):
    page = visit()
    found = search(page, "mask is additive")
    assert "faq.html" in found[0]
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/faq.html*")
    assert page.locator("h1").inner_text().startswith("Errors, causes and fixes")


def test_there_are_light_and_dark_colours(visit):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (visit(color_scheme=scheme).evaluate(colour) for scheme in ("light", "dark"))
    assert light == "rgb(255, 255, 255)"
    assert max(map(int, dark.removeprefix("rgb(").removesuffix(")").split(","))) < 60
    page = visit(color_scheme="light")
    page.get_by_title("Dark colours").click()
    page.wait_for_function("document.body.dataset.mdColorScheme == 'slate'")


def test_links_of_the_navigation_work(visit):
    page = visit()
    page.locator(".md-tabs").get_by_role("link", name="Reference").click()
    page.wait_for_url("**/reference/index.html")
    page.locator("article").get_by_role("link", name="Operators").click()
    page.wait_for_url("**/reference/operators.html")
    page.goto(f"{page.url}#varla.vla_step")
    top = "document.getElementById('varla.vla_step').getBoundingClientRect().top"
    page.wait_for_function(f"0 <= {top} && {top} < 300")
    assert page.url.endswith("/reference/operators.html#varla.vla_step")
