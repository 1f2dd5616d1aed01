"""Chromium for tests of pages. A test module imports the fixtures `browser`, `open_page` and, if it uses it, `visit`;
and `needs_chromium`.

What a page complains about on its console, an error in it, or a request for anything but files fails the test.
"""

import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        running = found.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser):
    """`open_page(page)` opens a page, by its path or its address, and returns it."""
    opened, trouble = [], []

    def go(where, width=1300, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        opened.append(page)
        page.on("console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else trouble.append(asked.url)
        )
        page.goto(where if isinstance(where, str) else where.as_uri())
        return page

    yield go
    for page in opened:
        page.close()
    assert trouble == []


@pytest.fixture
def visit(open_page):
    """`visit(page)` opens a page of `varla.report.page` and waits until its charts are drawn."""

    def go(where, **options):
        page = open_page(where, **options)
        page.wait_for_selector("html[data-drawn]", timeout=20_000)
        return page

    return go
