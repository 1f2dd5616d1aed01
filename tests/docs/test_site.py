"""The built site: links hold, nothing points to a network, llms.txt lists its pages."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
import yaml

from tests.docs.conftest import build
from tests.docs.pages import DOCS, ROOT

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Found(HTMLParser):
    """The links, ids and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADED and given.get(LOADED[tag]):
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def pages(site):
    return {path: Found(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def nav(entries):
    """The pages of the navigation."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from nav([value] if isinstance(value, str) else value)


def navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    return list(nav(yaml.safe_load(text)))


def address(page):
    """Where the site has a page: README.md is an index."""
    return re.sub(r"README\.html$", "index.html", page.removesuffix(".md") + ".html")


@pytest.mark.parametrize("link", ["nowhere.md", "#nowhere", "index.md#nowhere", "/index.md"])
def test_a_link_that_does_not_hold_fails_the_build(tmp_path, link):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n[a link]({link})\n")
    changed = {"docs_dir": "docs", "plugins": [], "hooks": [], "nav": ["index.md"], "theme": "mkdocs"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({"INHERIT": str(ROOT / "mkdocs.yml"), **changed}))
    done = build("--config-file", tmp_path / "mkdocs.yml", cwd=tmp_path)
    assert done.returncode == 1
    assert link in done.stderr


def test_every_page_is_in_the_navigation_and_built(site):
    outside = {"performance.md", "tiny.md", "contributing.md", "security.md", "changelog.md"}
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert set(navigation()) == written | outside
    for page in navigation():
        assert (site / address(page)).is_file(), page


def test_internal_links_hold(site, pages):
    checked = 0
    for page, found in pages.items():
        for link in found.links:
            if re.match(r"(https?|mailto|javascript):", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if page.name == "404.html":
                target = site / path.lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (page, link)
            if target.name == "microscope.html":
                continue  # its script reads the anchor: test_microscope.py
            if anchor and anchor != "__skip" and target.suffix == ".html":
                assert anchor in pages[target].ids, (page, link)
            checked += 1
    assert checked > 1000


def test_nothing_is_loaded_from_a_network(site, pages):
    for page, found in pages.items():
        assert not [each for each in found.loaded if re.match(r"(https?:)?//", each)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_pages_of_the_repository_are_there_with_their_content(site):
    assert "Speed and accuracy of the kernels" in (site / "performance.html").read_text(encoding="utf-8")
    assert (site / "files/benchmarks/results/streaming.json").read_bytes() == (
        ROOT / "benchmarks/results/streaming.json"
    ).read_bytes()
    figures = {path.name for path in (DOCS / "reproduction/figures").iterdir()}
    assert {path.name for path in (site / "reproduction/figures").iterdir()} == figures


def test_no_markdown_is_left_in_a_page(pages):
    """Lists and tables are read differently from one Markdown to the next: a list needs a blank line before it here."""
    for page in pages:
        article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        prose = re.sub(r"<(pre|code)\b.*?</\1>|<!--.*?-->", "", article, flags=re.DOTALL)
        for left in (r"\|\s*-{3}", r"\]\(", r"<p>[^<]*\n[-*] ", r"^#+ ", r"^::: ", r"```"):
            assert not re.search(left, prose, flags=re.MULTILINE), (page, left)


def test_hooks_are_no_part_of_the_site(site):
    assert not list(site.rglob("*.py"))
    assert not (site / "hooks").exists()


def test_llms_txt_links_every_page_with_a_line(site):
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# varla"
    listed = {}
    for line in lines:
        if line.startswith("- "):
            name, link, says = re.fullmatch(r"- \[(.+)\]\((\S+)\): (.+)", line).groups()
            listed[link] = (name, says)
            assert (site / link).is_file(), link
    items = {page for page in navigation() if page.startswith("reproduction/")} - {"reproduction/README.md"}
    assert {address(page) for page in navigation()} - {address(page) for page in items} == set(listed)


def test_the_folder_of_the_site_is_ignored():
    assert "/site/" in (ROOT / ".gitignore").read_text().split()
