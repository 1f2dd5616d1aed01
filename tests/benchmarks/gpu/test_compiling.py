"""Compiling ahead of the benchmark: a peer's configurations are divided among processes, and none is left out."""

import pytest

from benchmarks.gpu import compiling

triton = pytest.importorskip("triton")


@triton.jit
def nothing(x):
    pass


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_parts_are_all_there_is(count, monkeypatch):
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__
    configs = [triton.Config({}, num_warps=2**i) for i in range(count)]
    known = []
    for part in range(4):
        monkeypatch.setattr(Autotuner, "__init__", make)
        compiling.choose_from(part, 4)
        known.append([config.num_warps for config in triton.autotune(configs, key=[])(nothing).configs])
    assert all(known)
    assert {warps for part in known for warps in part} == {config.num_warps for config in configs}
