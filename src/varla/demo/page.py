"""The demo's page and picture: accuracy, bytes of state, and one sequence with every model's answers."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
from markupsafe import Markup

from varla.demo.runs import CONTEXTS, EXAMPLE, PAIRS, WATCH, WATCHED, Result
from varla.demo.words import sentences
from varla.report.curves import learning_curves, lines, save
from varla.report.embed import embedded
from varla.report.page import Chart, Grid, Page, Section, facts
from varla.report.page import write as write_page

STYLE = """
.hit, .miss { display: block; padding: 0 .4rem; border-radius: .25rem; white-space: nowrap; }
.hit { color: var(--good); background: var(--good-back); }
.miss { color: var(--wrong); background: var(--wrong-back); }
.pairs { display: flex; flex-wrap: wrap; gap: .3rem; padding: 0; list-style: none; font-variant-numeric: tabular-nums; }
.pairs li { padding: 0 .45rem; border: 1px solid var(--line); border-radius: .25rem; white-space: nowrap; }
"""


def write(results: Sequence[Result], folder: Path) -> dict[str, Path]:
    """Write curves.png and index.html into the folder; returns {"curves": path, "page": path}."""
    curves = learning_curves({each.name: each.curve() for each in results}, chance=_chance(results))
    picture = save(curves, folder / "curves.png")
    return {"curves": picture, "page": write_page(page(results, curves), folder / "index.html")}


def page(results: Sequence[Result], curves: alt.LayerChart) -> Page:
    """The page of these results, with the chart of their learning curves."""
    headline, *lead = sentences(results)
    names = " and ".join(WATCHED)
    watch = Markup(
        f'<p><a href="{WATCH}">The memories of {names}, token by token</a>: the same sequence, and which keys each '
        "memory still answers. <code>varla watch</code> made that page.</p>"
    )
    sections = [
        Section(
            "Accuracy against bytes of state", [_against_bytes(results), _table(results)], "state", "Accuracy and state"
        ),
        Section("Learning", [_curves(results, curves)], "learning"),
        Section("State against context length", [_against_context(results)], "context", "State and context"),
        Section("One sequence, every model's answers", [*_example(results), watch], "sequence", "One sequence"),
        Section("What was the same for all", [_same(results)], "same", "Same for all"),
        Section("Where this demo is weak", [_weak(results)], "weak", "Weak points"),
    ]
    machine = facts(results[0].runs[0].record["environment"])
    return Page("varla demo", headline, sections, lead, machine, style=STYLE)


def _chance(results: Sequence[Result]) -> float:
    return float(results[0].runs[0].record["chance"])


def _table(results: Sequence[Result]) -> Grid:
    headers = list(results[0].row())
    rows = [list(each.row().values()) for each in results]
    note = "Accuracy: mean over the seeds. Tokens/s: median while two runs train side by side. Seconds: of all seeds."
    return Grid("The contenders", headers, rows, headers[1:], note)


def _against_bytes(results: Sequence[Result]) -> Chart:
    names = [each.name for each in results]
    values = [{"run": each.name, "bytes": each.state_bytes, "value": each.accuracy} for each in results]
    ranges = [
        {"run": each.name, "bytes": each.state_bytes, "least": each.range[0], "most": each.range[1]} for each in results
    ]
    axis = alt.X(
        "bytes:Q",
        title="bytes of state",
        scale=alt.Scale(type="log", nice=False, padding=20),
        axis=alt.Axis(format="~s"),
    )
    points = lines(values, names, "bytes", "accuracy", alt.Scale(domain=[0, 1])).encode(x=axis)
    rules = (
        alt.Chart(alt.InlineData(values=ranges))
        .mark_rule(strokeWidth=2, opacity=0.45)
        .encode(x=axis, y=alt.Y("least:Q", title="accuracy"), y2="most:Q", color=points.encoding.color)
    )
    chart = alt.layer(rules, points).properties(height=300)
    about = (
        f"Points are means over the seeds, lines reach from the least to the greatest. Bytes of one sequence's state "
        f"after the task's {_length(results)} tokens. {results[0].convolution:,} of them are the short convolution's, "
        "in every model."
    )
    return Chart("accuracy", "More to the left is a smaller state, higher is better", embedded(chart), about)


def _curves(results: Sequence[Result], curves: alt.LayerChart) -> Chart:
    about = (
        "Mean over the seeds, on sequences that training has not seen. The rule is a guess among all values, "
        f"{_chance(results):.3f}."
    )
    return Chart("curves", "Accuracy by training step", embedded(curves), about)


def _against_context(results: Sequence[Result]) -> Chart:
    names = [each.name for each in results]
    values = [
        {"run": each.name, "tokens": length, "value": size} for each in results for length, size in each.sizes.items()
    ]
    x, y = (alt.Scale(type="log", nice=False), alt.Scale(type="log"))
    lengths = alt.Axis(format=",", values=list(CONTEXTS[::3]), labelOverlap=True)
    chart = lines(values, names, "tokens", "bytes of state", y).encode(
        x=alt.X("tokens:Q", title="tokens of context", scale=x, axis=lengths),
        y=alt.Y(
            "value:Q", title="bytes of state", scale=y, axis=alt.Axis(format="~s", values=[10**i for i in range(3, 10)])
        ),
        tooltip=["run:N", alt.Tooltip("tokens:Q", format=","), alt.Tooltip("value:Q", title="bytes", format=",")],
    )
    rows = [[f"{length:,}", *(f"{each.sizes[length]:,}" for each in results)] for length in CONTEXTS]
    grid = Grid("Bytes of state by context length", ("tokens", *names), rows, ("tokens", *names))
    about = (
        "Computed from the layers' states, in float32, for one sequence in these small models. Nothing was trained at "
        "these lengths."
    )
    return Chart(
        "context-length",
        "Softmax's cache grows, all other states keep their size",
        embedded(chart.properties(height=300)),
        about,
        grid,
    )


def _example(results: Sequence[Result]) -> list[str | Markup | Grid]:
    example = results[0].example
    pairs = Markup("").join(Markup("<li>{} → {}</li>").format(key, value) for key, value in example.pairs)
    rows = [
        [key, value, *(_answer(each.answers[i], value) for each in results)]
        for i, (key, value) in enumerate(example.queries)
    ]
    total = ["right", "", *(f"{each.right} of {len(rows)}" for each in results)]
    note = (
        "The models of the first seed. ✓ right, ✗ wrong. The sequence is the first that a generator of seed "
        f"{EXAMPLE} draws."
    )
    return [
        f"A fresh sequence, not chosen by what came out. First it gives {PAIRS} pairs, in this order:",
        Markup('<ol class="pairs">{}</ol>').format(pairs),
        "Then it asks for every key once, in this order:",
        Grid("Queries and answers", ("query", "answer", *(each.name for each in results)), [*rows, total], (), note),
    ]


def _answer(said: str, value: str) -> Markup:
    kind, mark = ("hit", "✓") if said == value else ("miss", "✗")
    return Markup('<span class="{}">{} {}</span>').format(kind, mark, said)


def _length(results: Sequence[Result]) -> int:
    return 4 * int(results[0].runs[0].record["config"]["task"]["n"])


def _same(results: Sequence[Result]) -> Grid:
    config = results[0].runs[0].record["config"]
    task, model, train = config["task"], config["model"], config["train"]
    seeds = ", ".join(str(run.record["config"]["seed"]) for run in results[0].runs)
    shape = f"{task['n']} pairs, then each key once, {_length(results)} tokens, vocabulary {task['vocab_size']}"
    rows = [
        ("task", f"{task['name']}: {shape}"),
        ("model", f"{model['n_layers']} layer, width {model['d_model']}, feed-forward {model['ffn']}"),
        ("memory", f"{model['n_heads']} head, keys of {config['layer']['head_dim']}, values as wide, or twice as wide"),
        ("protocol", f"{config['preset']}: short convolution, output norm, PyTorch's initialisation, no positions"),
        ("learning rate", f"{train['lr']:g}, warm-up and cosine, AdamW"),
        ("training", f"{train['steps']} steps of {train['batch_size']} sequences, the same ones for all"),
        ("seeds", seeds),
    ]
    parameters = [int(each.runs[0].record["parameters"]) for each in results]
    note = f"Parameters: {min(parameters):,} to {max(parameters):,}, since mechanisms differ in their gates."
    return Grid("Settings of all runs", ("setting", "value"), rows, (), note)


def _weak(results: Sequence[Result]) -> Markup:
    seeds = len(results[0].runs)
    points = (
        f"{seeds} seeds are few: between equals, one of two is ahead with all of them one time in {2 ** (seeds - 1)}. "
        "When a seed finds the task is partly luck. Another learning rate or more steps can change the order.",
        "The setting was chosen after trials, so that most seeds find the task in minutes. In some of the others "
        "deltanet recalls as much as gated-vla, or more: docs/lab.md lists them.",
        "The models are tiny and the task is made up. docs/family.md has larger ones, and language, and what speaks "
        "against gated-vla there.",
        "Softmax attention has the largest state here. While a context is short enough to keep, it is the "
        "better choice.",
        "A takes more bytes than S alone, and time: see gated-vla and vla in the table. The wide row spends those "
        "bytes without A.",
        "The speeds are those of a CPU with short sequences. On a GPU they differ.",
    )
    return Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(text) for text in points))
