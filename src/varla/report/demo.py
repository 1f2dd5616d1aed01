"""The demo's pictures: learning curves, and what the memories look like from token to token, on one page."""

import html
from collections.abc import Sequence
from pathlib import Path

import altair as alt

from varla.experiments.demo import Result
from varla.report.curves import DASHES, learning_curves, save
from varla.report.series import PALETTE

EXPECTED = (
    "Each sequence holds eight key-value pairs and then asks for values by their keys: VLA, which writes only what its "
    "memory cannot yet predict along directions it has not used, learns to answer; linear attention, which adds "
    "everything up, stays near the level of naming any of the values seen; and softmax attention fails here because of "
    "this training protocol (the paper's: small random weights, learned positions, no short convolution), not for lack "
    "of capacity."
)


def sentence(results: Sequence[Result]) -> str:
    """What the reader is seeing; if this run did not come out that way, that instead."""
    accuracy = {r.mechanism: r.accuracy for r in results}
    if accuracy["vla"] >= 0.99 and max(accuracy["linear"], accuracy["softmax"]) <= 0.3:
        return EXPECTED
    found = ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items())
    return (
        f"This run did not come out as expected (VLA at least 0.99, linear and softmax at most 0.3): {found}. "
        "Accuracy jumps late and suddenly; with fewer than about 1000 steps it may not have jumped yet."
    )


def write(results: Sequence[Result], folder: Path) -> dict[str, Path]:
    """Write curves.png and index.html (self-contained) into the folder; returns their paths by what they are."""
    chance = float(results[0].record["chance"])
    curves = learning_curves({r.mechanism: r.metrics for r in results}, chance=chance)
    picture = save(curves, folder / "curves.png")
    panels = [curves.properties(title="Accuracy on fresh sequences, by training step")]
    panels += [
        chart
        for name, title in (
            ("|S|", "Norm of the memory S after each token (last layer)"),
            ("|A|", "Norm of the inverse penalty A after each token"),
            ("k.a", "k . a: 1 where VLA writes along the key itself"),
        )
        if (chart := over_positions(results, name, title)) is not None
    ]
    body = alt.vconcat(*panels, spacing=40).resolve_scale(
        color="independent", strokeDash="independent", shape="independent"
    )
    page = folder / "index.html"
    page.write_text(_page(body.to_html(inline=True, fullhtml=False, output_div="charts"), results), encoding="utf-8")
    return {"curves": picture, "page": page}


def over_positions(results: Sequence[Result], name: str, title: str) -> alt.Chart | None:
    """One line a mechanism that has this reading; None if none has."""
    points = [
        {"mechanism": r.mechanism, "position": i + 1, "value": value}
        for r in results
        for i, value in enumerate(r.readings.get(name, []))
    ]
    if not points:
        return None
    names = [r.mechanism for r in results]  # a mechanism keeps its look from panel to panel
    chart: alt.Chart = alt.Chart(alt.InlineData(points), title=title).mark_line(point=True)
    chart = chart.encode(
        x=alt.X("position:Q", title="token"),
        y=alt.Y("value:Q", title=name),
        color=alt.Color("mechanism:N", scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)]))),
        strokeDash=alt.StrokeDash("mechanism:N", scale=alt.Scale(domain=names, range=list(DASHES[: len(names)]))),
        tooltip=["mechanism:N", "position:Q", "value:Q"],
    )
    sized: alt.Chart = chart.properties(width=560, height=200)
    return sized


def _page(charts: str, results: Sequence[Result]) -> str:
    rows = "\n".join(
        f"<tr><td>{html.escape(r.mechanism)}</td><td>{r.accuracy:.3f}</td><td>{r.record['chance']:.3f}</td>"
        f"<td>{r.record['state bytes']:,}</td><td>{r.record['parameters']:,}</td>"
        f"<td>{r.tokens_per_second:,.0f}</td></tr>"
        for r in results
    )
    machine = results[0].record["environment"]
    train = results[0].record["config"]["train"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>varla demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
td:first-child, th:first-child {{ text-align: left; }} #charts, .wide {{ overflow-x: auto; }}
</style></head><body>
<h1>Four mechanisms learn to recall</h1>
<p>{html.escape(sentence(results))}</p>
<div class="wide"><table><tr><th>mechanism</th><th>accuracy</th><th>chance</th><th>state bytes</th><th>parameters</th>
<th>tokens/s</th></tr>
{rows}
</table></div>
<p>MQAR, n = 8, preset <code>paper</code>, learning rate {train["lr"]:g} (the paper's 3e-4 is too slow for a demo),
{train["steps"]} steps of {train["batch_size"]} sequences, seed {results[0].record["config"]["seed"]};
{html.escape(str(machine["processor"]))}, torch {html.escape(str(machine["torch"]))}.</p>
<div id="charts"></div>
{charts}
</body></html>
"""
