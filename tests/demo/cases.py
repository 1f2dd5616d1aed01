"""Results of the demo that were not trained: any accuracies, for its sentences and its page."""

from pathlib import Path

from varla.demo.runs import CONTENDERS, CONTEXTS, PAIRS, Example, Result, Trained, base

PAIRS_GIVEN = [(f"k{i}", f"v{20 + i}") for i in range(PAIRS)]
EXAMPLE = Example(PAIRS_GIVEN, PAIRS_GIVEN[::-1])
# Three seeds each. The accuracies are made up.
ACCURACIES = {
    "gated-vla": (0.70, 0.72, 0.74),
    "vla": (0.40, 0.42, 0.44),
    "gated-deltanet, wide": (0.90, 0.92, 0.94),
    "gated-deltanet": (0.60, 0.62, 0.64),
    "deltanet": (0.63, 0.67, 0.71),
    "linear": (0.12, 0.12, 0.12),
    "softmax": (1.0, 1.0, 1.0),
}


def trained(accuracy, seed, size, speed):
    config = {**base(800), "seed": seed}
    record = {
        "final": {"eval": accuracy},
        "state bytes": size,
        "seconds": 10.0,
        "parameters": 20_000,
        "chance": 0.04,
        "config": config,
        "environment": {"processor": "Imaginary 9000", "torch": "2.13"},
    }
    metrics = [{"step": step, "eval": accuracy * step / 800, "tokens/s": speed} for step in (400, 800)]
    return Trained(Path(f"runs/{seed}"), record, metrics)


def results(changes=None):
    """A result for each contender, the most accurate first; `changes` replaces accuracies."""
    found = []
    for contender in CONTENDERS:
        accuracies = {**ACCURACIES, **(changes or {})}[contender.name]
        grows = contender.mechanism == "softmax"
        sizes = {length: 768 + (64 * length if grows else 256) for length in CONTEXTS}
        size = 5000 if grows else 1000
        speed = 500.0 if contender.name == "gated-vla" else 1000.0
        runs = [trained(accuracy, 42 + i, size, speed) for i, accuracy in enumerate(accuracies)]
        right = round(PAIRS * runs[0].accuracy)
        answers = [value if i < right else "v99" for i, (_, value) in enumerate(EXAMPLE.queries)]
        found.append(Result(contender.name, runs, sizes, 768, EXAMPLE, answers))
    return sorted(found, key=lambda result: -result.accuracy)
