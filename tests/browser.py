"""Chromium for tests of pages. A test module imports the fixtures `window`, `open_page` and, if it uses it, `visit`;
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
def window():
    """One page of Chromium for all tests of a module: a new one, with its process, takes longer than what it is for."""
    with playwright.sync_playwright() as found:
        running = found.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running.new_page()
        running.close()


def leave(window):
    """Make the window as if it were new: nothing shown, nothing stored, the mouse outside."""
    if window.url != "about:blank":
        window.evaluate("localStorage.clear(); sessionStorage.clear()")
        window.mouse.move(-1, -1)
        window.goto("about:blank")


@pytest.fixture
def open_page(window):
    """`open_page(page)` opens a page, by its path or its address, and returns it. The one before is gone."""
    trouble = []
    listeners = {
        "console": lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None,
        "pageerror": lambda error: trouble.append(str(error)),
        "request": lambda asked: (
            None if asked.url.startswith(("file:", "data:", "about:")) else trouble.append(asked.url)
        ),
    }
    for event, listener in listeners.items():
        window.on(event, listener)

    def go(where, width=1300, color_scheme="light"):
        leave(window)
        window.set_viewport_size({"width": width, "height": 900})
        window.emulate_media(media="null", color_scheme=color_scheme)
        window.goto(where if isinstance(where, str) else where.as_uri())
        return window

    yield go
    leave(window)
    for event, listener in listeners.items():
        window.remove_listener(event, listener)
    assert trouble == []


@pytest.fixture
def visit(open_page):
    """`visit(page)` opens a page of `varla.report.page` and waits until its charts are drawn."""

    def go(where, **options):
        page = open_page(where, **options)
        page.wait_for_selector("html[data-drawn]", timeout=20_000)
        return page

    return go
