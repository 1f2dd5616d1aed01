"""Compiles the kernels of norms, rotary positions and gates, as `compiling` does VLA's.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling_parts ARCH [fresh]. With
`fresh`, records are not read.
"""

import os
import sys

import torch

from tests.ops.triton.compiling import report_launches
from tests.ops.triton.recorded import FRESH
from varla.ops.triton.gate import gate
from varla.ops.triton.norm import normalize
from varla.ops.triton.rotary import turn


def main(arch: int) -> None:
    report_launches(arch)
    for N in (512, 8192):
        x, weight = torch.randn(100, N).requires_grad_(), torch.randn(N).requires_grad_()
        normalize(x, weight, 1e-6, torch.bfloat16).float().sum().backward()
    x, table = torch.randn(1, 50, 4, 64).bfloat16().requires_grad_(), torch.randn(1, 50, 32)
    turn(x, table, table, False).float().sum().backward()
    g = torch.randn(7, 640).bfloat16().requires_grad_()
    gate(g, g).float().sum().backward()


if __name__ == "__main__":
    if "fresh" in sys.argv:
        os.environ[FRESH] = "1"
    main(int(sys.argv[1]))
