"""The GPU kernels, measured: a module a section, and what they share. `python -m benchmarks.gpu` runs them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # where the processes that are started find varla and the benchmarks
