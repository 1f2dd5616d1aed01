"""Precompiling covers what any length and batch launches."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.ops.triton.test_compiling_chunks import SHARED_BY_BOTH  # noqa: E402
from varla.ops.directions.triton import inverse, refresh_backward, walk  # noqa: E402
from varla.ops.fused.triton.op import VLALauncher  # noqa: E402
from varla.ops.memory.settings import MemorySettings  # noqa: E402
from varla.ops.memory.triton import kernels, kernels_backward  # noqa: E402
from varla.ops.memory.triton.launch import MemoryLauncher  # noqa: E402
from varla.ops.triton import launcher, precompile  # noqa: E402
from varla.ops.triton.launcher import NARROW_KEY, Launcher, Precision, Shape  # noqa: E402
from varla.ops.triton.op import rehearse  # noqa: E402
from varla.ops.triton.plan import make_plan, span_length  # noqa: E402
from varla.ops.vla import GATES, VLASettings  # noqa: E402

KERNELS = [
    (module, name)
    for module in (inverse, refresh_backward, walk, kernels, kernels_backward)
    for name, value in vars(module).items()
    if hasattr(value, "warmup") or type(value).__name__ == "InterpretedFunction"
] + [(launcher, "running_sum")]
CPU = torch.device("cpu")


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


def rehearsal(
    kind: type[Launcher], shape: Shape, precision: Precision, dtype: torch.dtype, gates: Sequence[str], *settings: Any
) -> Any:
    given = [not name.endswith("?") or name[:-1] in gates for name in kind.inputs.split()]
    made = kind(make_plan((64,), 64, CPU), shape, precision, *settings, given=frozenset(gates))

    def call(tokens: int, plan: Any, started: list[Any]) -> None:
        rehearse(replace(made, plan=plan, dry=started), settings, given, tokens, dtype, CPU, True)

    return call


@pytest.mark.parametrize("H", [1, 4, 16, 100])
@pytest.mark.parametrize("refresh_every", [20, None])
@pytest.mark.parametrize(("dtype", "gates"), [(torch.bfloat16, ()), (torch.float32, ()), (torch.bfloat16, GATES)])
def test_no_length_and_no_batch_needs_another_kernel(
    H: int, refresh_every: int | None, dtype: torch.dtype, gates: Sequence[str], seen: set[tuple[Any, ...]]
) -> None:
    D, precision = 64, Precision.of(dtype, 64, interpreted=False)
    settings = VLASettings(refresh_every=refresh_every).halves
    call = rehearsal(VLALauncher, Shape.of(H, D, D, precision.buffer), precision, dtype, gates, *settings)
    precompile.rehearse_all(call, H, CPU, started=[])
    known = set(seen)
    assert {"forward_walk", "scan", "finish", "backward_walk"} <= {name for name, *_ in known}
    for lengths in ((1,), (64,), (700,), (2500,), (65,) * 9, (70,) * (130 // H + 1), (3, 0, 70, 1, 1500), (0, 5)):
        call(sum(lengths), make_plan(lengths, span_length(sum(lengths), H), CPU), [])
        assert seen <= known, (lengths, seen - known)


@pytest.mark.parametrize("H", [1, 16])
@pytest.mark.parametrize("beat", [64, 192, 256, 4096])
def test_nor_does_forgetting(H: int, beat: int, seen: set[tuple[Any, ...]]) -> None:
    D, precision, gates = 64, Precision.of(torch.bfloat16, 64, interpreted=False), (*GATES, "forget")
    settings = VLASettings(refresh_every=None, beat=beat).halves
    shape = Shape.of(H, D, D, precision.buffer)
    call = rehearsal(VLALauncher, shape, precision, torch.bfloat16, gates, *settings)
    precompile.rehearse_all(call, H, CPU, started=[])
    known = set(seen)
    assert {"log_sum", "faded_sum", "faded_gradient"} <= {name for name, *_ in known}
    for lengths in ((1,), (700,), (65,) * 9, (3, 0, 70, 1, 1500)):
        span, gradient_span = VLALauncher.spans(sum(lengths), H, [True], *settings)
        call(sum(lengths), make_plan(lengths, span, CPU, gradient_span), [])
        assert seen <= known, (lengths, seen - known)


@pytest.mark.parametrize("H", [1, 100])
@pytest.mark.parametrize("error", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nor_do_the_delta_rule_and_linear_attention(
    H: int, error: bool, dtype: torch.dtype, seen: set[tuple[Any, ...]]
) -> None:
    D, precision = 64, Precision.of(dtype, 64, interpreted=False)
    settings = MemorySettings(feature_map="identity", normalizer=not error, normalize_key=False, error=error)
    call = rehearsal(MemoryLauncher, Shape.of(H, D, D, precision.buffer), precision, dtype, (), settings)
    precompile.rehearse_all(call, H, CPU, started=[])
    known = set(seen)
    assert {name for name, *_ in known} == {*SHARED_BY_BOTH, *(["turn"] if error else [])}
    for lengths in ((1,), (700,), (65,) * 9, (3, 0, 70, 1, 1500)):
        call(sum(lengths), make_plan(lengths, span_length(sum(lengths), H), CPU), [])
        assert seen <= known, (lengths, seen - known)


def test_odd_sizes_over_the_memory_of_others(seen: set[tuple[Any, ...]]) -> None:
    """In bfloat16 with Dv=128 dP lies where dS did, whatever D is."""
    D, precision = 17, Precision.of(torch.bfloat16, 17, interpreted=False)
    shape, settings = Shape.of(2, D, 128, precision.buffer), VLASettings().halves
    rehearsal(VLALauncher, shape, precision, torch.bfloat16, (), *settings)(70, make_plan((70,), 256, CPU), [])
    assert "finish" in {name for name, *_ in seen}


def test_narrow_keys_have_full_precision() -> None:
    narrow, wide = (Precision.of(torch.bfloat16, D, interpreted=False) for D in (NARROW_KEY - 1, NARROW_KEY))
    assert narrow == Precision.of(torch.float32, NARROW_KEY, interpreted=False)
    assert (wide.buffer, wide.dot) == (torch.bfloat16, "bf16")


def test_no_launcher_is_built_twice() -> None:
    def kernel(*types: str) -> Any:
        return SimpleNamespace(src=SimpleNamespace(signature=dict(enumerate(types))))

    kernels = [kernel("*fp32", "i32"), kernel("*bf16", "i32"), kernel("*fp32", "i32"), kernel("*fp32", "constexpr")]
    chosen = [each.src.signature for each in precompile._one_of_each(kernels)]
    assert chosen == [each.src.signature for each in (kernels[0], kernels[1], kernels[3])]
