"""Which checks this machine needs, and one check: an error for every number that comes out, or what went wrong."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from varla.doctor.compare import BOUNDS, STEPS, operator_errors, step_errors
from varla.doctor.operators import OPERATORS, Shape
from varla.doctor.parts import PARTS, part_errors
from varla.ops.backends import backends, triton_interpreted

FINE, WRONG = "fine", "WRONG"
OPERATOR, STEP, PART = "operator", "one token", "kernel"

_PACKED = Shape(16, 16, lengths=(20, 0, 41, 1), state=True)
_STEPS = Shape(24, 20, T=STEPS, B=2, state=True)
# In PyTorch: several chunks, packed sequences that go on, and keys wide enough for another chunk size.
PLAIN = (Shape(24, 20, T=75, B=2), _PACKED, Shape(64, 64, T=70, H=1))
# The loop on a GPU launches dozens of kernels for every token.
LOOP_ON_GPU = (_PACKED,)
# Kernels take seconds to compile for each D and dtype: not every pair is checked, except with `vla` (EVERY_PAIR).
# Up to 64 tokens, some operators have other kernels.
_KERNEL_PACKED = Shape(16, 16, lengths=(20, 0, 70, 1, 130), state=True)
_KERNEL_SHORT = Shape(64, 64, T=40, B=2, H=1, state=True)
_KERNEL_64, _KERNEL_128 = Shape(64, 64, T=150), Shape(128, 128, T=150)
KERNELS = (
    ("float32", _KERNEL_PACKED),
    ("float32", _KERNEL_SHORT),
    ("float32", _KERNEL_64),
    ("bfloat16", _KERNEL_SHORT),
    ("bfloat16", _KERNEL_64),
    ("bfloat16", _KERNEL_128),
)
EVERY_PAIR = (*KERNELS, ("bfloat16", Shape(16, 16, T=150, B=2)), ("float32", _KERNEL_128))
# Triton's interpreter is slow, and cuts bfloat16 off where a GPU rounds.
INTERPRETED = (("float32", Shape(16, 16, lengths=(3, 0, 70), state=True)), ("float32", Shape(16, 16, T=20)))


@dataclass(frozen=True)
class Check:
    """One call to compare with the reference."""

    device: str
    kind: str  # OPERATOR, STEP or PART
    name: str  # of OPERATORS or PARTS
    backend: str
    dtype: str
    shape: Shape | None = None  # kernels beside the mechanisms have their own

    @property
    def what(self) -> str:
        """What is checked, without the shape."""
        name = self.name if self.kind == OPERATOR else f"{self.name}, {self.kind}"
        return f"{name}: {self.backend}, {self.dtype}"


@dataclass(frozen=True)
class Outcome:
    """A check and what it found: relative errors by name, or the `message` of what kept it from finding them."""

    check: Check
    errors: dict[str, float] = field(default_factory=dict)
    message: str | None = None
    seconds: float = 0.0

    @property
    def bound(self) -> float:
        """The largest error that is allowed."""
        return BOUNDS[self.check.dtype]

    @property
    def worst(self) -> tuple[str, float] | None:
        """The result with the largest error, and that error."""
        return max(self.errors.items(), key=lambda each: each[1]) if self.errors else None

    @property
    def verdict(self) -> str:
        """FINE or WRONG."""
        return FINE if self.message is None and self.worst is not None and self.worst[1] <= self.bound else WRONG

    @property
    def complaint(self) -> str:
        """What is wrong, in a sentence."""
        check = self.check
        where = f"{check.what} on {check.device}" + ("" if check.shape is None else f" ({check.shape})")
        if self.message is not None:
            return f"{where}: {self.message}"
        over = [f"{name} {error:.1e}" for name, error in self.errors.items() if not error <= self.bound]
        return f"{where}: relative errors over {self.bound:.1e}: {', '.join(over)}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        check, worst = self.check, self.worst or (None, None)
        return {
            "device": check.device,
            "kind": check.kind,
            "name": check.name,
            "backend": check.backend,
            "dtype": check.dtype,
            "shape": None if check.shape is None else str(check.shape),
            "errors": self.errors,
            "worst": worst[0],
            "error": worst[1],
            "bound": self.bound,
            "verdict": self.verdict,
            "message": self.message,
            "seconds": round(self.seconds, 3),
        }


def run(check: Check) -> Outcome:
    """Carry out one check. An exception is a finding, not the end."""
    start = time.monotonic()
    try:
        found = _errors(check)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return Outcome(check, {}, f"{type(error).__name__}: {first}", time.monotonic() - start)
    return Outcome(check, found, None, time.monotonic() - start)


def _errors(check: Check) -> dict[str, float]:
    if check.shape is None:
        return part_errors(check.name, check.device, check.dtype)
    compare = operator_errors if check.kind == OPERATOR else step_errors
    return compare(check.name, check.backend, check.device, check.dtype, check.shape)


def devices() -> list[str]:
    """The CPU and every GPU."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def backends_on(device: str) -> list[str]:
    """The backends that can run on this device. Interpreted kernels are checked on the CPU alone."""
    found = [name for name, each in backends().items() if each.available and name != "triton"]
    if device == "cpu":
        kernels = triton_interpreted()
    else:
        kernels = not triton_interpreted() and torch.cuda.get_device_capability(device) >= (8, 0)
    return [*found, "triton"] if kernels and backends()["triton"].available else found


def plan(quick: bool = False) -> list[Check]:
    """All checks for this machine, device by device; `quick`: `vla` alone, in one shape for each dtype."""
    found = [check for device in devices() for check in _on(device, backends_on(device))]
    if not quick:
        return found
    first = {(each.device, each.backend, each.dtype): each for each in reversed(found) if each.name == "vla"}
    return [each for each in found if each in first.values()]


def _on(device: str, available: list[str]) -> Iterator[Check]:
    for name, operator in OPERATORS.items():
        for backend in available:
            if backend in operator.backends:
                for dtype, shape in _cases(device, name, backend):
                    yield Check(device, OPERATOR, name, backend, dtype, shape)
            if backend in operator.step:
                for dtype in _dtypes(device, backend):
                    yield Check(device, STEP, name, backend, dtype, _STEPS)
    for name in PARTS if "triton" in available else ():
        for dtype in _dtypes(device, "triton"):
            yield Check(device, PART, name, "triton", dtype)


def _cases(device: str, name: str, backend: str) -> tuple[tuple[str, Shape], ...]:
    """(dtype, shape) of every call."""
    if backend == "triton":
        return INTERPRETED if device == "cpu" else EVERY_PAIR if name == "vla" else KERNELS
    shapes = LOOP_ON_GPU if backend == "reference" and device != "cpu" else PLAIN
    return tuple((dtype, shape) for dtype in BOUNDS for shape in shapes)


def _dtypes(device: str, backend: str) -> tuple[str, ...]:
    return ("float32",) if backend == "triton" and device == "cpu" else tuple(BOUNDS)
