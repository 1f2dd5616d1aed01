"""Altair's charts inside a page: without a network, as wide as their place, in the page's colours."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt
import vl_convert

# The page's custom properties: a chart turns dark with its page, and light on paper, without being drawn again.
THEME: dict[str, Any] = {
    "background": "transparent",
    "font": 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif',
    "axis": {
        "labelColor": "var(--text)",
        "titleColor": "var(--faint)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "axisX": {"grid": False},
    "legend": {
        "labelColor": "var(--text)",
        "symbolStrokeColor": "var(--faint)",
        "labelFontSize": 12,
        "orient": "bottom",
        "direction": "horizontal",
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    },
    "view": {"strokeOpacity": 0},
}


def embedded(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """A single or a layered chart as Vega-Lite for a page (`varla.report.page.Chart`): as wide as its place."""
    found: dict[str, Any] = chart.to_dict()
    sizing = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**found, **sizing, "config": _merged(found.get("config", {}), THEME)}


@cache
def script() -> str:
    """The scripts Vega, Vega-Lite and Vega-Embed for a page, in the version of the charts."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version())
    return bundle.replace("</script", "<\\/script")


def version() -> str:
    """Altair's version of Vega-Lite as vl-convert writes it, such as v6.1."""
    return ".".join(alt.SCHEMA_VERSION.split(".")[:2])


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, entry by entry; where both have a value, the one of `above`."""
    found = dict(below)
    for name, value in above.items():
        before = found.get(name)
        found[name] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return found
