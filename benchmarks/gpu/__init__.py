"""Measurements of the GPU kernels, with one module for each section. `python -m benchmarks.gpu` runs them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # working directory of subprocesses, where they find varla and the benchmarks
