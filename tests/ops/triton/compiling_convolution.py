"""Compiles the kernels of the short convolution, as `compiling` does VLA's.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling_convolution ARCH.
"""

import sys

import torch

from tests.ops.triton.compiling import report_launches
from varla.ops.triton.convolution import convolve


def main(arch: int) -> None:
    report_launches(arch)
    shapes = ((1, 200, 512), (512, 4), (512,), (2, 3, 512))
    x, weight, bias, before = (torch.randn(*shape).requires_grad_() for shape in shapes)
    convolve(x.bfloat16(), weight, bias, before, torch.tensor([0, 100, 200])).sum().backward()


if __name__ == "__main__":
    main(int(sys.argv[1]))
