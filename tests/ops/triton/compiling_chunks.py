"""Compiles the kernels of the delta rule and of linear attention in chunks, as `compiling` does VLA's.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling_chunks ARCH TYPE D ERROR
[decay].
"""

import sys

import torch

from tests.ops.triton.compiling import report_launches
from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton.op import memory_triton


def main(arch: int, dtype: torch.dtype, D: int, error: bool, decayed: bool) -> None:
    report_launches(arch)
    q, k, v = (torch.randn(1, 200, 2, D, dtype=dtype, requires_grad=True) for _ in range(3))
    settings = MemorySettings(feature_map="identity", normalizer=not error, normalize_key=False, error=error)
    S, z, t = torch.zeros(1, 2, D, D), torch.zeros(1, 2, D), torch.zeros(1, dtype=torch.int64)
    decay = torch.zeros(1, 200, 2, 1, dtype=dtype, requires_grad=True) if decayed else None
    o, *_ = memory_triton(q, k, v, k, None, decay, S, z, t, None, settings, True)
    o.sum().backward()


if __name__ == "__main__":
    arch, dtype, D, error, *decayed = sys.argv[1:]
    main(int(arch), getattr(torch, dtype), int(D), bool(int(error)), bool(decayed))
