"""What the tests of kernels share: where they run, settings, states, how results are compared."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import varla
from tests.ops.cases import of_type, vla_state

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"refresh_every": None},
    {"gain": "projection"},
    {"gain": "raw", "lambda0": 2.0},
    {"normalizer": False},
    {"normalize_key": False, "penalty_scale": 1.0, "gain": "projection"},
    {"feature_map": "identity", "normalizer": False},
    {"update_penalty": False},
    {"refresh_every": 1},
    {"refresh_every": 7, "refresh": 0.1},
    {"refresh_every": 2**40},
    {"refresh": 0.0},
    {"eps": 30.0},
]


def state_on(device: str, B: int = 2, H: int = 2, D: int = 16, Dv: int = 16) -> varla.VLAState:
    state: varla.VLAState = of_type(vla_state(B, H, D, Dv), torch.float32).to(device)
    return state


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.detach().double().cpu(), wanted.detach().double().cpu()
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-30))


def assert_near(
    got: tuple[torch.Tensor, varla.VLAState], wanted: tuple[torch.Tensor, varla.VLAState], tolerance: float
) -> None:
    """Output and state within `tolerance`, by norm; t exactly."""
    pairs = {"o": (got[0], wanted[0])}
    pairs |= {name: (x, wanted[1].tensors()[name]) for name, x in got[1].tensors().items()}
    errors = {name: relative(*pair) for name, pair in pairs.items()}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}
    assert got[1].t.tolist() == wanted[1].t.tolist()


def round_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels round float32 to bfloat16 as on a GPU; Triton's interpreter cuts it off, which is twice as far away."""
    if DEVICE == "cuda":
        return
    import triton.language as tl
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    cast = builder.cast_impl

    def rounded(self: Any, source: Any, kind: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, kind)
        bits = torch.as_tensor(source.data).bfloat16().view(torch.int16).numpy().view("uint16")
        return interpreter.TensorHandle(bits, tl.bfloat16)

    monkeypatch.setattr(builder, "cast_impl", rounded)


@cache
def _compiler() -> "subprocess.Popen[str]":
    """The process that compiles, without the interpreter; it ends when its input does, with this process."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.triton.compiler"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def compiled(program: str, *arguments: object) -> list[dict[str, Any]]:
    """What tests.ops.triton.<program> says of each kernel it compiles, in a process without the interpreter."""
    compiler = _compiler()
    assert compiler.stdin is not None
    assert compiler.stdout is not None
    print(json.dumps([f"tests.ops.triton.{program}", *map(str, arguments)]), file=compiler.stdin, flush=True)
    status, output, errors = json.loads(compiler.stdout.readline())
    assert status == 0, errors[-2000:]
    return [json.loads(line) for line in output.splitlines()]


class FakesAgree(TorchDispatchMode):
    """Within it, every operator of varla, those of backwards included, is held to what its fake says: torch.compile
    plans memory by that."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "varla":
            self.seen.add(func.__name__.split(".")[0])
            with FakeTensorMode() as mode:
                given, named = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs or {}))
                expected = func(*given, **named)
            for real, fake in zip(tree_leaves(found), tree_leaves(expected), strict=True):
                assert (real.shape, real.dtype) == (fake.shape, fake.dtype), func
                assert real.numel() == 0 or real.stride() == fake.stride(), func
        return found


def assert_fakes_agree(call: Callable[..., Any], leaves: Sequence[torch.Tensor], *operators: str) -> None:
    """Call and backward, in which these operators run."""
    with FakesAgree() as mode:
        results = [x for x in tree_leaves(call()) if x.requires_grad]
        torch.autograd.grad([x.sum() for x in results], list(leaves), allow_unused=True)
    assert mode.seen == set(operators)
