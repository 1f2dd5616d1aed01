"""Compiles the kernels of queries and keys, as `compiling` does VLA's.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling_features ARCH TYPE D.
"""

import sys

import torch

from tests.ops.triton.compiling import report_launches
from varla.ops.triton.features import scaled_features


def main(arch: int, dtype: torch.dtype, D: int) -> None:
    report_launches(arch)
    x, beta = (torch.randn(2, 100, 3, size).to(dtype).requires_grad_() for size in (D, 1))
    for kind, strength in (("elu1", None), ("identity", beta), ("elu1", beta)):
        found = scaled_features(x, strength, kind, strength is not None, 0.5, dtype)
        sum(y.sum() for y in found).backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]))
