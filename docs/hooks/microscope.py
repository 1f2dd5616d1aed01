"""A page of `varla watch`, live in the article about it.

The Markdown has a picture in that place, which is what a reader of the repository sees. The page is drawn at build time
by today's template from the numbers beside the picture. `python docs/hooks/microscope.py PAGE` takes them from a page
of `varla watch`.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Literal

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ARTICLE, LIVE = "watch.md", "microscope.html"
START = "#head=2&amp;token=12&amp;key=8"  # a key is asked again: the answer is right
NUMBERS = Path(__file__).parent.parent / "figures" / "watch.json"
PICTURES: dict[str, Literal["light", "dark"]] = {"watch.png": "light", "watch-dark.png": "dark"}
PICTURE = re.compile(r"^!\[(.*)\]\(figures/watch\.png\)$", flags=re.MULTILINE)
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', flags=re.DOTALL)
FRAME = """<figure class="microscope" markdown="0">
<iframe src="{live}{start}" title="{title}"></iframe>
<figcaption>This page is live. <a href="{live}{start}">Open it alone</a></figcaption>
</figure>"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    from varla.watch.page import render

    data = json.loads(NUMBERS.read_text(encoding="utf-8"))
    files.append(File.generated(config, LIVE, content=render(data)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the page where the article has its picture."""
    if page.file.src_uri != ARTICLE:
        return markdown
    written, places = PICTURE.subn(lambda found: FRAME.format(live=LIVE, start=START, title=found[1]), markdown)
    if places != 1:
        raise ValueError(f"{ARTICLE} must have one picture, as {PICTURE.pattern}")
    return written


def main(page: Path) -> None:
    """Take the numbers from a page of `varla watch`, and draw the pictures: what the article shows, without its end."""
    from playwright.sync_api import sync_playwright

    (found,) = DATA.findall(page.read_text(encoding="utf-8"))
    NUMBERS.write_text(found + "\n", encoding="utf-8")
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, scheme in PICTURES.items():
            shown = chromium.new_page(
                viewport={"width": 840, "height": 1200}, device_scale_factor=2, color_scheme=scheme
            )
            shown.goto(page.resolve().as_uri() + START.replace("&amp;", "&"))
            shown.locator("html[data-ready]").wait_for()
            shown.evaluate("document.documentElement.toggleAttribute('data-framed', true)")
            shown.evaluate(
                "new Promise((done) => { redraw(); requestAnimationFrame(() => requestAnimationFrame(done)); })"
            )
            end = shown.locator(".readings").evaluate("readings => readings.getBoundingClientRect().top")
            shown.screenshot(path=NUMBERS.with_name(name), clip={"x": 0, "y": 0, "width": 840, "height": round(end)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
