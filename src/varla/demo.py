"""The demo: four mechanisms learn to recall eight pairs, on a CPU, in minutes, and a page shows what they learned.

It follows the paper's protocol (preset `paper`) but for the learning rate: 1e-3 instead of 3e-4, because 1000 steps are
too few at the paper's rate.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import torch

from varla.report.curves import learning_curves, lines, save
from varla.runs.folder import RunError
from varla.runs.metrics import EVAL
from varla.runs.outcomes import FINISHED
from varla.runs.writing import write_aside
from varla.training import Run, build_model, build_task, checkpoint, sweep

MECHANISMS = ("vla", "deltanet-paper", "linear", "softmax")  # slowest first, so that two workers end together
STEPS = 1000
WATCH = "watch.html"  # beside the page: what two of the memories hold (`varla watch`)
EXPECTED = (
    "Each sequence holds eight key-value pairs and then asks for values by their keys. VLA learns to answer: it writes "
    "only what its memory cannot yet predict, along directions it has not used. Linear attention adds everything up, "
    "and stays near the accuracy of naming any value of the sequence. Softmax attention fails because of this training "
    "protocol (the paper's: small random weights, learned positions, no short convolution), not for lack of capacity."
)


@dataclass(frozen=True)
class Result:
    """One mechanism's run: its record, its logged metrics, and readings of its last layer at every token."""

    mechanism: str
    record: dict[str, Any]
    metrics: list[dict[str, Any]]
    readings: dict[str, list[float]]

    @property
    def accuracy(self) -> float:
        """Share of queries answered correctly at the end."""
        return float(self.record["final"][EVAL])

    @property
    def tokens_per_second(self) -> float:
        """Training speed: the median of the logged values."""
        found = sorted(entry["tokens/s"] for entry in self.metrics if "tokens/s" in entry)
        return found[len(found) // 2] if found else 0.0

    def row(self) -> dict[str, str]:
        """The cells of the demo's table, by column."""
        return {
            "mechanism": self.mechanism,
            "accuracy": f"{self.accuracy:.3f}",
            "chance": f"{self.record['chance']:.3f}",
            "state bytes": f"{self.record['state bytes']:,}",
            "parameters": f"{self.record['parameters']:,}",
            "tokens/s": f"{self.tokens_per_second:,.0f}",
            "seconds": f"{self.record['seconds']:.0f}",
        }


def base(steps: int, seed: int) -> dict[str, Any]:
    """The settings that all four runs share."""
    return {
        "preset": "paper",
        "seed": seed,
        "task": {"name": "mqar", "n": 8},
        "train": {
            "steps": steps,
            "lr": 1e-3,
            "log_every": 25,
            "eval_every": max(1, steps // 20),
            "eval_batches": 15,
            "checkpoint_every": steps,
        },
    }


def run(
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 42,
    watch: Callable[[Sequence[sweep.Job]], None] = lambda jobs: None,
) -> list[Result]:
    """Train the four mechanisms, unless they are finished already, and collect their results."""
    jobs = sweep.expand(base(steps, seed), {"mechanism": list(MECHANISMS)}, folder / "runs")
    sweep.plan(jobs)
    sweep.run(jobs, device="cpu", watch=watch)
    failed = [job for job in jobs if job.state != FINISHED]
    if failed:
        raise RunError("; ".join(f"{job.folder}: {job.state} {job.note}" for job in failed))
    return [collect(job.folder) for job in jobs]


def collect(folder: Path) -> Result:
    """Load a finished run, and watch its trained memory token by token on a few fresh sequences."""
    found = Run(folder)
    config = found.config()
    model = build_model(config)
    newest = checkpoint.latest(found.checkpoints)
    if newest is None:
        raise RunError(f"{folder} has no checkpoint")
    checkpoint.load_weights(newest, model)
    tokens, _ = build_task(config).batch(16, generator=torch.Generator().manual_seed(0))
    last = model.watch(tokens)[-1]
    readings = {name: values.mean((0, 2)).tolist() for name, values in last.items()}
    return Result(config.mechanism, found.record(), found.metrics(), readings)


def sentence(results: Sequence[Result]) -> str:
    """What the results show; if they are not the expected ones, the accuracies instead."""
    accuracy = {r.mechanism: r.accuracy for r in results}
    if accuracy["vla"] >= 0.99 and max(accuracy["linear"], accuracy["softmax"]) <= 0.3:
        return EXPECTED
    found = ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items())
    return (
        f"This run did not come out as expected (VLA at least 0.99, linear and softmax at most 0.3): {found}. "
        "Accuracy jumps late and suddenly; with fewer than about 1000 steps it may not have jumped yet."
    )


def write(results: Sequence[Result], folder: Path) -> dict[str, Path]:
    """Write curves.png and a self-contained index.html into the folder; returns {"curves": path, "page": path}."""
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
    write_aside(page, _page(body.to_html(inline=True, fullhtml=False, output_div="charts"), results))
    return {"curves": picture, "page": page}


def over_positions(results: Sequence[Result], name: str, title: str) -> alt.Chart | None:
    """A chart with one line per mechanism that has this reading; None if none has it."""
    points = [
        {"run": r.mechanism, "token": i + 1, "value": value}
        for r in results
        for i, value in enumerate(r.readings.get(name, []))
    ]
    if not points:
        return None
    names = [r.mechanism for r in results]  # all of them, so that a mechanism looks the same in every panel
    chart: alt.Chart = lines(points, names, "token", name).properties(title=title, width=560, height=200)
    return chart


def _page(charts: str, results: Sequence[Result]) -> str:
    header = "".join(f"<th>{name}</th>" for name in results[0].row())
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(x)}</td>" for x in r.row().values()) + "</tr>" for r in results
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
<div class="wide"><table><tr>{header}</tr>
{rows}
</table></div>
<p>MQAR, n = 8, preset <code>paper</code>, learning rate {train["lr"]:g} (the paper's 3e-4 is too slow for a demo),
{train["steps"]} steps of {train["batch_size"]} sequences, seed {results[0].record["config"]["seed"]};
{html.escape(str(machine["processor"]))}, torch {html.escape(str(machine["torch"]))}.</p>
<p><a href="{WATCH}">The memories of VLA and linear attention, token by token</a>: which keys they still answer.</p>
<div id="charts"></div>
{charts}
</body></html>
"""
