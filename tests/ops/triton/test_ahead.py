"""Compiling ahead covers what any length and batch launches."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.ops.triton.cases import settings  # noqa: E402
from varla.ops.triton import ahead, information, memory, penalty  # noqa: E402
from varla.ops.triton.configuration import Inputs, Kept, Precision, Shape, State  # noqa: E402
from varla.ops.triton.pipeline import Pipeline  # noqa: E402
from varla.ops.triton.plan import make_plan, span_length  # noqa: E402

KERNELS = [
    (module, name)
    for module in (information, memory, penalty)
    for name, value in vars(module).items()
    if hasattr(value, "warmup") or type(value).__name__ == "InterpretedFunction"
]


class Recorder:
    """In place of a kernel: what it would have been compiled for, whether launched or only compiled."""

    def __init__(self, name: str, seen: set[tuple[Any, ...]]) -> None:
        self.name, self.seen = name, seen

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **options: Any) -> None:
        assert all(isinstance(size, int) for size in grid)
        kinds = tuple(self._kind(value) for value in arguments)
        self.seen.add((self.name, kinds, tuple(sorted(options.items()))))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **options: self.warmup(*arguments, grid=grid, **options)

    def _kind(self, value: Any) -> Any:
        """What Triton tells arguments apart by: types; of integers, 1 and multiples of 16."""
        if isinstance(value, torch.Tensor):
            return value.dtype
        return (type(value), value == 1, value % 16 == 0) if isinstance(value, int) else type(value)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    kernels: set[tuple[Any, ...]] = set()
    for module, name in KERNELS:
        monkeypatch.setattr(module, name, Recorder(name, kernels))
    return kernels


def call(pipeline: Pipeline, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    s, N = pipeline.shape, len(lengths)
    x = Inputs(*(torch.zeros(sum(lengths), s.H, size, dtype=dtype) for size in (s.D, s.D, s.DV, s.D)))
    state = State(
        torch.zeros(N, s.H, s.DV, s.D), torch.zeros(N, s.H, s.D, s.D), torch.zeros(N, s.H, s.D), torch.zeros(N).long()
    )
    kept = Kept.empty(
        x.q, pipeline.shape.DV, len(pipeline.plan.chunks), len(pipeline.plan.spans), pipeline.precision.buffer
    )
    o, S, A, z = pipeline.forward(x, state, kept)
    pipeline.backward(x, state, kept, A, o, S, A, z)


@pytest.mark.parametrize("H", [1, 4, 16, 100])
@pytest.mark.parametrize("refresh_every", [20, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_length_and_no_batch_needs_another_kernel(
    H: int, refresh_every: int | None, dtype: torch.dtype, seen: set[tuple[Any, ...]]
) -> None:
    D, cpu = 64, torch.device("cpu")
    precision = Precision.of(dtype, interpreted=False)
    shape = Shape.of(H, D, D, precision.buffer)
    pipeline = Pipeline(make_plan((64,), 64, cpu), shape, precision, settings(D, refresh_every=refresh_every))
    ahead.rehearse_all(pipeline, dtype, cpu, backward=True, started=[])
    known = set(seen)
    assert {"forward_walk", "scan", "finish", "backward_walk"} <= {name for name, *_ in known}
    for lengths in ((1,), (64,), (700,), (2500,), (65,) * 9, (70,) * (130 // H + 1), (3, 0, 70, 1, 1500), (0, 5)):
        plan = make_plan(lengths, span_length(sum(lengths), H), cpu)
        call(Pipeline(plan, shape, precision, pipeline.settings), lengths, dtype)
        assert seen <= known, (lengths, seen - known)


def test_odd_sizes_over_the_memory_of_others(seen: set[tuple[Any, ...]]) -> None:
    """In bfloat16 with Dv=128 dP lies where dS did, whatever D is."""
    cpu, precision = torch.device("cpu"), Precision.of(torch.bfloat16, interpreted=False)
    pipeline = Pipeline(make_plan((70,), 256, cpu), Shape.of(2, 5, 128, precision.buffer), precision, settings(5))
    call(pipeline, (70,), torch.bfloat16)
    assert "finish" in {name for name, *_ in seen}


def test_no_launcher_is_built_twice() -> None:
    def kernel(*types: str) -> Any:
        return SimpleNamespace(src=SimpleNamespace(signature=dict(enumerate(types))))

    kernels = [kernel("*fp32", "i32"), kernel("*bf16", "i32"), kernel("*fp32", "i32"), kernel("*fp32", "constexpr")]
    chosen = [each.src.signature for each in ahead._one_of_each(kernels)]
    assert chosen == [each.src.signature for each in (kernels[0], kernels[1], kernels[3])]
