"""The standard of varla's pages: the result in a sentence first, then sections, with details on demand.

A page is one file that opens without a network. It is light or dark as the reader's system is, and fits a phone.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from varla.report.embed import script as vega_script
from varla.runs.writing import write_aside

_FACTS = ("processor", "cores", "threads", "gpus", "system", "python", "torch", "varla", "commit")
_COMMIT = 10  # digits


@dataclass(frozen=True)
class Grid:
    """A small table. Cells are text or markup; `right` names the columns of numbers."""

    title: str  # for screen readers
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart with its title above it. `numbers`, if given, are folded below it."""

    name: str  # the id of its element, other than every other id of the page
    title: str
    spec: Mapping[str, Any]  # Vega-Lite, from `varla.report.embed.embedded`
    about: str = ""  # how to read it
    numbers: Grid | None = None
    tag: str = ""


@dataclass(frozen=True)
class Fold:
    """Details on demand: parts below a line that opens them."""

    summary: str
    parts: "Sequence[Part]"
    open: bool = False


@dataclass(frozen=True)
class Beside:
    """Parts side by side where the page is wide enough."""

    parts: "Sequence[Part]"


# Text becomes a paragraph, and its parts between backquotes become code. Markup is taken as it is.
Part: TypeAlias = str | Markup | Grid | Chart | Fold | Beside


@dataclass(frozen=True)
class Section:
    """A section. `label` stands for its title in the contents."""

    title: str
    parts: Sequence[Part]
    anchor: str
    label: str = ""


@dataclass(frozen=True)
class Page:
    """A page. `headline` is its result in one sentence, `lead` has the next ones, a paragraph each."""

    title: str
    headline: str
    sections: Sequence[Section]
    lead: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # machine, versions, commit: see `facts`
    footer: str = "This page is one file. Opening it runs and fetches nothing."
    style: str = ""  # beside the standard's
    script: str = ""


def render(page: Page) -> str:
    """The page's HTML."""
    charts = {chart.name: chart.spec for section in page.sections for chart in _charts(section.parts)}
    environment = make_environment("varla.report")
    environment.tests.update({name: _is(kind) for name, kind in _KINDS.items()})
    return environment.get_template("page.html").render(
        page=page,
        right=Markup(' class="right"'),
        specs=script_json(charts),
        style=Markup(template_text("varla.report", "page.css") + page.style),
        scripts=[Markup(text) for text in (page.script, template_text("varla.report", "page.js")) if text],
        vega=Markup(vega_script()) if charts else "",
    )


def write(page: Page, path: Path) -> Path:
    """Write the page, and make missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, render(page))
    return path


def facts(*environments: Mapping[str, Any]) -> dict[str, str]:
    """Machine, versions and commit of records' environments, for the end of a page. Unknown ones are left out.

    Where records differ, all their values are given.
    """
    found: dict[str, list[str]] = {name: [] for name in _FACTS}
    for name, environment in ((name, each) for name in _FACTS for each in environments):
        value = environment.get(name)
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        if name == "commit":
            bare = shown.removesuffix("-dirty")
            shown = bare[:_COMMIT] + shown[len(bare) :]
        if shown and shown not in found[name]:
            found[name].append(shown)
    return {name: "; ".join(values) for name, values in found.items() if values}


def anchor(text: str) -> str:
    """Text as an anchor: what a URL cannot hold becomes a hyphen."""
    return re.sub(r"[^\w.-]+", "-", text)


def prose(text: str) -> Markup:
    """Text as HTML; parts between backquotes become code. Markup stays as it is."""
    if isinstance(text, Markup):
        return text
    parts = str(escape(text)).split("`")
    if len(parts) % 2 == 0:  # one is unpaired: they are not meant as quotes
        return escape(text)
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)))


def script_json(value: Any) -> Markup:
    """JSON for a script element: nothing in it ends the element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def make_environment(package: str) -> Environment:
    """Jinja2 for the templates of a package: text is escaped, an unknown name is an error, `prose` is a filter."""
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["prose"] = prose
    return environment


def template_text(package: str, name: str) -> str:
    """A file among a package's templates, as it is."""
    return (resources.files(package) / "templates" / name).read_text(encoding="utf-8")


_KINDS: dict[str, type] = {"grid": Grid, "chart": Chart, "fold": Fold, "beside": Beside, "markup": Markup}


def _is(kind: type) -> Any:
    return lambda part: isinstance(part, kind)


def _charts(parts: Sequence[Part]) -> Iterator[Chart]:
    for part in parts:
        if isinstance(part, Chart):
            yield part
        elif isinstance(part, (Fold, Beside)):
            yield from _charts(part.parts)
