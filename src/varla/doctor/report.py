"""What was found, summed up: a line for each operator, backend and dtype, and the verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from varla.doctor.checks import FINE, WRONG, Outcome
from varla.doctor.machine import Machine


@dataclass(frozen=True)
class Line:
    """All checks of one operator, backend and dtype on one device: the worst of them."""

    what: str
    worst: str | None  # the result with the largest error; None if no check found an error
    error: float | None
    bound: float
    verdict: str


@dataclass(frozen=True)
class Report:
    """The machine, and the outcomes in the order of the plan."""

    machine: Machine
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """A sentence for everything that is WRONG."""
        return [*self.machine.wrong, *(each.complaint for each in self.outcomes if each.verdict == WRONG)]

    @property
    def verdict(self) -> str:
        """FINE or WRONG."""
        return WRONG if self.wrong else FINE

    def lines(self) -> dict[str, list[Line]]:
        """For each device, a line for each operator, backend and dtype."""
        found: dict[str, dict[str, list[Outcome]]] = {}
        for each in self.outcomes:
            found.setdefault(each.check.device, {}).setdefault(each.check.what, []).append(each)
        return {device: [_line(what, group) for what, group in lines.items()] for device, lines in found.items()}

    def summary(self) -> list[str]:
        """The paragraphs that end a report: software, devices, and the verdict. They can stand alone."""
        found = self.machine.found
        names = ("python", "torch", "triton", "transformers", "numpy", "safetensors")
        software = [f"{name} {found[name]}" for name in names if name in found]
        checks = f"{len(self.outcomes)} checks in {self.seconds:.0f} s"
        failed = sum(each.verdict == WRONG for each in self.outcomes)
        counted = f"{checks}, {failed} of them WRONG" if failed else f"{checks}, all fine"
        return [
            f"varla {found['varla']} ({found['commit'] or 'commit unknown'})",
            ", ".join(software),
            ", ".join([found["system"], found["processor"], *(str(gpu) for gpu in self.machine.gpus)]),
            *(f"note: {each}" for each in self.machine.remarks),
            *(f"WRONG: {each}" for each in self.wrong),
            f"verdict: {self.verdict} ({counted})",
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict,
            "wrong": self.wrong,
            "notes": self.machine.remarks,
            "seconds": round(self.seconds, 1),
            "machine": self.machine.to_dict(),
            "checks": [each.to_dict() for each in self.outcomes],
        }


def _line(what: str, group: Iterable[Outcome]) -> Line:
    group = list(group)
    found = [each.worst for each in group if each.worst is not None]
    worst, error = max(found, key=lambda each: each[1]) if found else (None, None)
    verdict = WRONG if any(each.verdict == WRONG for each in group) else FINE
    return Line(what, worst, error, group[0].bound, verdict)
