"""Pages that stand outside docs/, and links to whatever stands there.

Links in a page are those of the repository, so that they also hold where its files are read one by one. Here they are
rewritten to the pages of the site; other files that they name are copied into it.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = {
    "benchmarks/RESULTS.md": "performance.md",
    "src/varla/box/tiny/README.md": "tiny.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
SOURCES = {page: source for source, page in OUTSIDE.items()}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files that pages link to."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    linked = {target for file in files.documentation_pages() for target in _linked(file)}
    for target in sorted(linked):
        if files.get_file_from_path(_place(target)) is None and (ROOT / target).is_file():
            files.append(File.generated(config, _place(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between files of the site; read Markdown in details."""
    here = page.file.src_uri

    def rewrite(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        found = _place(_target(here, link))
        if "://" in link or files.get_file_from_path(found) is None:
            return match[0]  # an address, or a link that does not hold: MkDocs says so
        return before + posixpath.relpath(found, posixpath.dirname(here) or ".") + after

    return LINK.sub(rewrite, markdown).replace("<details>", '<details markdown="1">')


def _linked(file: File) -> Iterator[str]:
    """What a page links to, as paths in the repository."""
    if file.abs_src_path is not None:  # else it is written at build time
        for _, link, _ in LINK.findall(Path(file.abs_src_path).read_text(encoding="utf-8")):
            if "://" not in link:
                yield _target(file.src_uri, link)


def _target(page: str, link: str) -> str:
    """The path in the repository that a link of a page means."""
    source = SOURCES.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _place(path: str) -> str:
    """The path in the site's sources of a path in the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else posixpath.join("files", path)
