"""The demo: seven contenders learn to recall with the same treatment, on a CPU, in minutes; a page shows what came out.

Its sentences are computed from the results, whatever these are.
"""

from varla.demo.page import write
from varla.demo.runs import CONTENDERS, EXAMPLE, PAIRS, SEEDS, STEPS, WATCH, WATCHED, Contender, Result, run
from varla.demo.words import sentences

__all__ = [
    "CONTENDERS",
    "EXAMPLE",
    "PAIRS",
    "SEEDS",
    "STEPS",
    "WATCH",
    "WATCHED",
    "Contender",
    "Result",
    "run",
    "sentences",
    "write",
]
