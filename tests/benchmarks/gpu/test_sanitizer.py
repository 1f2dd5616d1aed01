"""What runs under compute-sanitizer: every kernel, and how its report is read."""

import json

import pytest
import torch

from benchmarks.gpu import sanitizer


@pytest.mark.skipif(torch.cuda.is_available(), reason="the calls are made on the CPU")
def test_the_calls_launch_every_kernel(monkeypatch, capsys):
    pytest.importorskip("triton")
    from varla.ops.triton.pipeline import Pipeline

    monkeypatch.setattr(Pipeline, "_launch", lambda self, kernel, *arguments, **options: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    exec(compile(sanitizer.CALLS.replace('"cuda"', '"cpu"'), "calls", "exec"), {})
    names = set(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert names == sanitizer.launched()
    assert {"forward_walk", "element_walk", "sandwich", "finish"} <= names


def test_its_count_is_read():
    assert sanitizer.errors_in("========= ERROR SUMMARY: 12 errors\n") == 12
    assert sanitizer.errors_in("========= ERROR SUMMARY: 0 errors\n") == 0
    assert sanitizer.errors_in("killed") is None
