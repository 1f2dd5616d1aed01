"""The recall results that the layers must show: `python -m benchmarks.recall` trains them side by side.

Writes benchmarks/results/recall.json. Each run is a process of its own. On a GPU all of them share it and a full set
takes minutes; on a CPU two run at a time, for hours. `--steps` shortens all of them for a try.
"""

import argparse
import json
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, table, write

PAPER = {"preset": "paper", "task": {"name": "mqar", "n": 24}, "train": {"steps": 3000}}
TUNED = {"preset": "tuned", "task": {"name": "mqar-disjoint", "n": 24}, "train": {"steps": 2000, "lr": 1e-3}}
# name: (settings, lowest and highest accuracy to expect)
RUNS: dict[str, tuple[dict[str, Any], float, float]] = {
    "paper, vla": ({**PAPER, "mechanism": "vla"}, 0.99, 1.0),
    "paper, vla without output norm": ({**PAPER, "mechanism": "vla", "layer": {"output_norm": "none"}}, 0.0, 0.2),
    "paper, vla with A fixed": ({**PAPER, "mechanism": "vla", "layer": {"update_penalty": False}}, 0.3, 0.8),
    "paper, linear": ({**PAPER, "mechanism": "linear"}, 0.0, 0.3),
    "paper, softmax": ({**PAPER, "mechanism": "softmax"}, 0.0, 0.3),
    "paper, deltanet-paper": ({**PAPER, "mechanism": "deltanet-paper"}, 0.0, 0.3),
    "tuned, softmax": ({**TUNED, "mechanism": "softmax"}, 0.98, 1.0),
    "tuned, deltanet": ({**TUNED, "mechanism": "deltanet"}, 0.98, 1.0),
    "tuned, vla": ({**TUNED, "mechanism": "vla"}, 0.98, 1.0),
    "tuned, linear": ({**TUNED, "mechanism": "linear"}, 0.0, 1.0),  # nothing is claimed: see what comes out
}


def one(job: tuple[str, str, int | None, int]) -> dict[str, Any]:
    from varla.training import from_dict, train

    name, folder, steps, seed = job
    torch.set_num_threads(1)
    settings = {**RUNS[name][0], "seed": seed}
    settings["train"] = {**settings["train"], **({"steps": steps} if steps else {}), "checkpoint_every": 100_000}
    return row(name, train(from_dict(settings), Path(folder) / name.replace(", ", "-").replace(" ", "-")))


def row(name: str, record: dict[str, Any]) -> dict[str, Any]:
    _, low, high = RUNS[name]
    accuracy = record["final"]["eval/eval"]
    return {
        "run": name,
        "accuracy": accuracy,
        "expected": [low, high],
        "as expected": low <= accuracy <= high,
        "seconds": record["seconds"],
        "device": record["device"],
        "config": record["config"],
        "environment": record["environment"],
    }


def kept(seed: int, without: set[str]) -> list[dict[str, Any]]:
    """Rows of an earlier call with the same seed, so that a set can be done in parts."""
    path = RESULTS / "recall.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"seed": seed, "runs": []}
    return [row for row in found["runs"] if found["seed"] == seed and row["run"] not in without]


def save(seed: int, rows: list[dict[str, Any]]) -> None:
    write("recall", {"seed": seed, "runs": sorted(rows, key=lambda row: list(RUNS).index(row["run"]))})


def jobs_at_a_time() -> int:
    """All share a GPU; on a CPU, more than a few would only take each other's memory and time."""
    return len(RUNS) if torch.cuda.is_available() else 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="instead of the full number; nothing is written")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--jobs", type=int, default=jobs_at_a_time(), help="runs at a time (%(default)s here)")
    parser.add_argument("names", nargs="*", help=f"runs to do, of: {', '.join(RUNS)}")
    arguments = parser.parse_args()
    jobs = [(name, arguments.steps, arguments.seed) for name in arguments.names or RUNS]
    rows = kept(arguments.seed, without={name for name, *_ in jobs})
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for found in pool.imap_unordered(one, [(name, folder, steps, seed) for name, steps, seed in jobs]):
            print(f"{found['run']}: {found['accuracy']:.4f} in {found['seconds']:.0f} s", flush=True)
            rows.append(found)
            if not arguments.steps:  # after each: what is done survives a stop
                save(arguments.seed, rows)
    cells = [[r["run"], f"{r['accuracy']:.4f}", str(r["expected"]), str(r["as expected"])] for r in rows]
    print(table(["run", "accuracy", "expected", "as expected"], cells))


if __name__ == "__main__":
    main()
