"""The comparisons as tables: `python -m benchmarks.lm.table` draws the recorded runs into docs/language.md."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.lm.contenders import EVERY
from benchmarks.lm.record import best_rate, tried
from varla.runs.outcomes import DIVERGED, FINISHED

DOCS = Path(__file__).parents[2] / "docs/language.md"
RECORDS = ("lm.json", "lm_gated.json")
NOT_RUN = "Not run yet."


def markdown(runs: Sequence[dict[str, Any]]) -> str:
    """The reported runs, by contender: mean and spread over seeds. A table for each group that can be compared."""
    groups = comparable([run for run in runs if run["settings"]["purpose"] == "report"])
    rates = sorted({run["settings"]["rate"] for run in runs if tried(run) is not None})
    tables = [_table(group, rates) for group in groups]
    if len(groups) > 1:
        names = (f"Text {group[0]['settings']['corpus']}:" for group in groups)
        tables = [f"{name}\n\n{each}" for name, each in zip(names, tables, strict=True)]
    return "\n\n".join(tables) or NOT_RUN


def _table(group: Sequence[dict[str, Any]], rates: Sequence[float]) -> str:
    contexts = group[0]["settings"]["contexts"]
    header = ["", *(f"bits per byte at {size(T)}" for T in contexts), "tokens/s", "parameters", "state at the longest"]
    header += ["rate", "seeds"]
    rows = []
    for name in dict.fromkeys([*EVERY, *(run["settings"]["contender"] for run in group)]):  # former ones come last
        own = [run for run in group if run["settings"]["contender"] == name]
        rate = best_rate(own) or (own[-1]["settings"]["rate"] if own else None)  # else the newest
        own = [run for run in own if run["settings"]["rate"] == rate]
        if own:
            rows.append([name, *cells(own, contexts)])
    first, steps = group[0]["settings"], group[0]["steps"]
    total = steps * first["rows"] * first["context"] / 1e6
    return "\n".join(
        [
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
            f"{steps} steps of {first['rows']} rows of {first['context']} bytes, {total:.1f} million in total; "
            f"{', '.join(gpus(group))}. Mean over the seeds ± half of their range. "
            f"Rates tried: {', '.join(f'{rate:g}' for rate in rates)}.",
        ]
    )


def comparable(reported: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The runs in groups: those of a group differ only in contender, rate and seed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in reported:
        shared = {key: value for key, value in run["settings"].items() if key not in ("contender", "rate", "seed")}
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(run)
    return list(groups.values())


def cells(own: Sequence[dict[str, Any]], contexts: Sequence[int]) -> list[str]:
    finished = [run for run in own if run["status"] == FINISHED]
    found = []
    for T in contexts:
        bits = [run["bits per byte"][str(T)] for run in finished]
        found.append(spread(bits) if len(bits) == len(own) else DIVERGED)
    speed = statistics.median(run["tokens/s"] for run in own)
    rates = sorted({run["settings"]["rate"] for run in own})
    return [
        *found,
        f"{speed / 1e6:.2f} M" if speed >= 1e4 else f"{speed:.0f}",
        f"{own[0]['parameters'] / 1e6:.1f} M",
        f"{own[0]['state bytes'][str(max(contexts))] / 1e6:.2f} MB",
        ", ".join(f"{rate:g}" for rate in rates),
        ", ".join(str(run["settings"]["seed"]) for run in own),
    ]


def spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ± {(max(values) - min(values)) / 2:.3f}"


def size(T: int) -> str:
    return f"{T // 1024}k" if T % 1024 == 0 else str(T)


def gpus(runs: Sequence[dict[str, Any]]) -> list[str]:
    found = {name for run in runs for name in run["environment"]["gpus"] or [run["environment"]["processor"]]}
    return sorted(found)


def recorded(name: str = RECORDS[0]) -> list[dict[str, Any]]:
    path = measure.RESULTS / name
    found: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return found


def page() -> str:
    """docs/language.md with the present tables."""
    text = DOCS.read_text()
    for name in RECORDS:
        source = f"benchmarks/results/{name}: python -m benchmarks.lm.table"
        text = measure.drawn(text, source, markdown(recorded(name)))
    return text


def main() -> None:
    DOCS.write_text(page())


if __name__ == "__main__":
    main()
