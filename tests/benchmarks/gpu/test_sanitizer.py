"""What runs under compute-sanitizer: every kernel, and how its report is read."""

import json

import pytest
import torch

from benchmarks.gpu import sanitizer


@pytest.mark.skipif(torch.cuda.is_available(), reason="the calls are made on the CPU")
def test_the_calls_launch_every_kernel(monkeypatch, capsys):
    pytest.importorskip("triton")
    from reproduction import sequential
    from varla.ops.fused.triton import decode
    from varla.ops.memory.triton import recurrent
    from varla.ops.triton import convolution, features, gate, norm, rotary
    from varla.ops.triton.launcher import Launcher

    class Kernel:
        """Notes that it was launched and does nothing."""

        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            return lambda *arguments, **options: directly.add(self.name)

    directly = set()
    for module in (convolution, decode, features, gate, norm, rotary, sequential, recurrent):
        for name in sanitizer.DIRECTLY:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, Kernel(name))
    monkeypatch.setattr(Launcher, "launch", lambda self, kernel, *arguments, **options: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    exec(compile(sanitizer.CALLS.replace('"cuda"', '"cpu"'), "calls", "exec"), {})
    names = set(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert names == sanitizer.launched()
    assert directly == set(sanitizer.DIRECTLY)
    assert {"forward_walk", "element_walk", "sandwich", "finish"} <= names


def test_its_count_is_read():
    assert sanitizer.errors_in("========= ERROR SUMMARY: 12 errors\n") == 12
    assert sanitizer.errors_in("========= ERROR SUMMARY: 0 errors\n") == 0
    assert sanitizer.errors_in("killed") is None
