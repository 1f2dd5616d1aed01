"""How far it is from `varla.vla` to the last launch: files and functions of the package that a call goes through."""

import sys
from typing import Any

import pytest
import torch

import varla

pytest.importorskip("triton")

from varla.ops.triton.launcher import Launcher


def visited(call: Any) -> dict[str, set[str]]:
    """The package's functions that a call enters, by file; comprehensions are part of the function they stand in."""
    found: dict[str, set[str]] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/varla/" in code.co_filename and code.co_name[0] != "<":
            found.setdefault(code.co_filename.split("/varla/")[-1], set()).add(code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_forward_passes_few_files_and_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call: the first one makes plans and settings, which are kept. Sequences of one span."""
    inputs = [torch.randn(1, 100, 2, 16) for _ in range(4)]
    if torch.cuda.is_available():
        inputs = [x.cuda() for x in inputs]
    launched: list[str] = []
    with torch.no_grad():
        varla.vla(*inputs, backend="triton")
        monkeypatch.setattr(Launcher, "launch", lambda self, kernel, *_, **__: launched.append(kernel.__name__))
        found = visited(lambda: varla.vla(*inputs, backend="triton"))
    assert launched == ["forward_walk", "prepare", "scan", "read"]
    found.get("ops/backends.py", set()).discard("triton_interpreted")  # not asked on a GPU
    assert len(found) <= 12, sorted(found)
    assert sum(map(len, found.values())) + 1 <= 25, found  # and `launch` itself
