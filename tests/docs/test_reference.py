"""The reference names everything that is public, and its signatures are those of the functions."""

import importlib
import inspect
import re

import pytest

import varla
from tests.docs.pages import DOCS
from varla.layers import MECHANISMS

ENTRIES = {
    name
    for page in (DOCS / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
}
PUBLIC = (
    "varla",
    "varla.layers",
    "varla.models",
    "varla.session",
    "varla.tasks",
    "varla.training",
    "varla.backbone",
    "varla.parallel",
)
# Names that have an entry under another package: one entry a thing.
ELSEWHERE = {
    "varla.session.Session": "varla.Session",
    "varla.backbone.ModelState": "varla.layers.ModelState",
    "varla.backbone.PRESETS": "varla.backbone.PROTOCOLS",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module):
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert {ELSEWHERE.get(name, name) for name in names} <= ENTRIES


def test_every_layer_has_an_entry_and_its_name_beside_it():
    layers = {name: f"{layer.__module__}.{layer.__qualname__}" for name, layer in MECHANISMS.items()}
    assert set(layers.values()) <= ENTRIES
    page = (DOCS / "reference/layers.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([\w-]+)` \| \[\w+\]\[([\w.]+)\] \|$", page, flags=re.MULTILINE)) == layers


def test_every_entry_exists():
    for entry in ENTRIES:
        module, _, name = entry.rpartition(".")
        assert hasattr(importlib.import_module(module), name), entry


def test_the_built_pages_hold_every_entry(site):
    found = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="([^"]+)"', found))
    assert anchors >= ENTRIES


@pytest.mark.parametrize("name", ["vla", "vla_step", "delta_rule", "mesa", "memory", "directions"])
def test_operators_show_all_their_keywords(site, name):
    page = (site / "reference" / "operators.html").read_text(encoding="utf-8")
    entry = page.split(f'id="varla.{name}"')[1].split("</code></pre>")[0]
    shown = " ".join(re.sub(r"<[^>]+>", "", entry).split())
    assert "options" not in shown
    for parameter in inspect.signature(getattr(varla, name)).parameters:
        assert re.search(rf"\b{parameter}\b", shown), parameter


def test_the_command_line_page_has_every_option(site):
    from typer.main import get_command

    from varla.cli.main import app

    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name, command in get_command(app).commands.items():
        if command.hidden:
            assert f'id="varla-{name}"' not in page
            continue
        section = page.split(f'id="varla-{name}"')[1].split("<h2")[0]
        for option in (option for each in command.params for option in each.opts if option.startswith("--")):
            assert option in section, (name, option)
