"""Plain text from HTML and reStructuredText, and removal of repeated documents, with the standard library alone."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser

LEAST = 256  # bytes; shorter documents are dropped
KNOWN_LINE = 40  # characters; only lines at least this long count as repetitions


@dataclass(frozen=True)
class Document:
    source: str
    name: str
    text: str

    @property
    def size(self) -> int:
        return len(self.text.encode())

    @property
    def digest(self) -> str:
        """A key that orders documents independently of their content."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class _Text(HTMLParser):
    BLOCKS = frozenset(
        ["address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "footer", "h1", "h2", "h3", "h4", "h5",
         "h6", "header", "hr", "li", "ol", "p", "pre", "section", "table", "tr", "ul"]
    )  # fmt: skip
    APART = frozenset(("blockquote", "h1", "h2", "h3", "h4", "p", "pre"))
    HIDDEN = frozenset(("head", "nav", "script", "style"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = self.kept = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in self.HIDDEN
        self.kept += tag == "pre"
        if tag in self.BLOCKS:
            self.parts.append("\n\n" if tag in self.APART else "\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in self.HIDDEN and self.hidden > 0
        self.kept -= tag == "pre" and self.kept > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data if self.kept else re.sub(r"\s+", " ", data))


def html(page: str) -> str:
    """The visible text of a page. Blank lines separate paragraphs; preformatted text keeps its lines."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    return "\n".join(line.strip(" ") if line[:2] != "  " else line for line in "".join(parser.parts).split("\n"))


_UNDERLINE = re.compile(r"^\s*([=\-~^\"'#*+.`:_])\1{2,}\s*$")
_TARGET = re.compile(r"^\s*\.\. (_[^:]*:|\[|\|)")
_DIRECTIVE = re.compile(r"^(\s*)\.\. ([\w:-]+)::\s*(.*)$")
_COMMENT = re.compile(r"^\s*\.\.( [^\[_|].*)?$")
_OPTION = re.compile(r"^\s+:[\w -]+:")
_ROLE = re.compile(r":[\w:+.-]+:`([^`]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
# Directives whose arguments name files and formats, not text.
_SILENT = frozenset(
    ["code", "code-block", "contents", "csv-table", "currentmodule", "figure", "flat-table", "highlight", "image",
     "include", "kernel-doc", "kernel-figure", "kernel-include", "list-table", "literalinclude", "module",
     "moduleauthor", "only", "parsed-literal", "raw", "sectionauthor", "sectnum", "tabularcolumns"]
)  # fmt: skip


_LISTS = frozenset(("index", "toctree"))  # directives whose bodies list names


def _role(match: re.Match[str]) -> str:
    return re.sub(r"\s*<[^>]*>$", "", match[1]).lstrip("~!")


def rest(source: str) -> str:
    """The text of reStructuredText, without underlines, targets, comments, directive names, options, and roles."""
    lines: list[str] = []
    heads = False  # whether options of a directive may follow
    below: int | None = None  # the indentation of a directive whose body is skipped
    for line in source.split("\n"):
        if below is not None and (not line.strip() or len(line) - len(line.lstrip()) > below):
            continue
        below = None
        if heads and _OPTION.match(line):
            continue
        directive = _DIRECTIVE.match(line)
        heads = directive is not None
        if directive is not None:
            indent, name, argument = directive.groups()
            if name in _LISTS:
                below = len(indent)
                lines.append("")
            elif name.split(":")[-1] not in _SILENT and argument:
                lines.append(indent + argument)
        elif not (_UNDERLINE.match(line) or _TARGET.match(line) or _COMMENT.match(line)):
            lines.append(line)
    text = _LINK.sub(r"\1", _ROLE.sub(_role, "\n".join(lines)))
    text = re.sub(r"``([^`\n]+)``", r"\1", text)
    return re.sub(r"\*\*(\S[^*\n]*)\*\*", r"\1", text).replace("::\n", ":\n")


def plain(text: str) -> str:
    return text


FORMATS: dict[str, Callable[[str], str]] = {"html": html, "rest": rest, "plain": plain}


def tidy(text: str) -> str:
    """Unix lines without trailing blanks and control characters, and with at most one empty line in a row."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "").replace("\u00a0", " ")
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip() + "\n"


def decode(data: bytes) -> str | None:
    """The text of UTF-8 bytes, or of Latin-1 bytes that look like text; None for anything else."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        strange = sum(0x7F <= byte < 0xA0 for byte in data)
        return None if strange > len(data) // 1000 else data.decode("latin-1")


def without_repetitions(documents: Iterable[Document]) -> Iterator[Document]:
    """Drop short documents and repetitions: documents of which at least half of the long lines occurred before."""
    seen: set[bytes] = set()
    for document in documents:
        if document.size < LEAST:
            continue
        long = [line.strip() for line in document.text.split("\n") if len(line.strip()) >= KNOWN_LINE]
        lines = {hashlib.blake2b(line.encode(), digest_size=8).digest() for line in long or [document.text]}
        known = len(lines & seen)
        seen |= lines
        if 2 * known < len(lines):
            yield document
