"""The page: a template, a style, two scripts and the numbers, all in one file that needs no network."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from varla.runs.writing import write_aside
from varla.watch.pack import fit, pack
from varla.watch.trace import LayerTrace

LARGEST = 3_000_000  # bytes of a page
_BESIDE = 250_000  # of these, for all but the layers: 512 tokens with what is said of them, style and scripts


@dataclass(frozen=True)
class Token:
    """A token to show, and the right answer after it where there is one."""

    text: str
    answer: str | None = None


@dataclass(frozen=True)
class Watched:
    """A model to show: its layers, and what it says after each token, in words (None: nothing worth showing)."""

    name: str
    layers: Sequence[LayerTrace]
    says: Sequence[str | None]


def write(path: Path, tokens: Sequence[Token], models: Sequence[Watched]) -> list[tuple[list[int], int]]:
    """Write the page of one model, or of two side by side, and make missing folders.

    Returns (the layers in it, bits of a number) for each model.
    """
    fitted = [fit(model.layers, (LARGEST - _BESIDE) // len(models)) for model in models]
    data = {
        "tokens": [asdict(token) for token in tokens],
        "models": [
            {
                "name": model.name,
                "says": list(model.says),
                "bits": bits,
                "left_out": len(model.layers) - len(layers),
                "layers": [pack(layer, bits) for layer in layers],
            }
            for model, (layers, bits) in zip(models, fitted, strict=True)
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, render(data))
    return [([layer.index for layer in layers], bits) for layers, bits in fitted]


def render(data: dict[str, Any]) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=PackageLoader("varla.watch"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(
        names=[model["name"] for model in data["models"]],
        count=len(data["tokens"]),
        data=_script_json(data),
        style=_part("page.css"),
        scripts=[_part(name) for name in ("replay.js", "drawing.js", "page.js")],
    )


def _script_json(value: Any) -> Markup:
    """JSON for a script element: nothing in it ends the element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _part(name: str) -> Markup:
    folder = resources.files("varla.watch") / "templates"
    return Markup((folder / name).read_text(encoding="utf-8"))
