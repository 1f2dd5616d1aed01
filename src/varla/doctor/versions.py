"""Which versions varla supports, and which compilers are known to be wrong."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from varla.doctor.checks import FINE, WRONG

MISSING = "not installed"
UNTESTED = "untested"


@dataclass(frozen=True)
class Requirement:
    """Versions of a package: `least` or later, before `below`; up to `newest` they are tested."""

    package: str
    least: str
    below: str | None = None
    newest: str | None = None
    use: str | None = None  # what an optional package is for

    @property
    def supported(self) -> str:
        """The range in words."""
        text = f"{self.least} or later" if self.below is None else f"{self.least} or later, before {self.below}"
        return text if self.newest is None else f"{text}; tested to {self.newest}"


# As in pyproject.toml and constraints.txt (tests/doctor/test_versions.py compares them).
REQUIREMENTS = (
    Requirement("python", "3.11", below="3.14"),
    Requirement("torch", "2.11", newest="2.13"),
    Requirement("numpy", "1.26"),
    Requirement("safetensors", "0.4"),
    Requirement("triton", "3.6", newest="3.9", use="kernels on a GPU"),
    Requirement("transformers", "5.17", below="5.23", use="varla.models"),
)
BAD_PTXAS, HOPPER = "12.8", 9


@dataclass(frozen=True)
class Version:
    """An installed version and what is to be said about it."""

    package: str
    version: str | None
    supported: str
    verdict: str
    remark: str | None = None


def judge(requirement: Requirement, version: str | None) -> Version:
    """Whether the version is supported."""
    package, supported = requirement.package, requirement.supported
    if version is None:
        if requirement.use is None:
            return Version(package, None, supported, WRONG, f"{package} is not installed; varla needs {supported}")
        return Version(package, None, supported, MISSING)
    found = _numbers(version)
    if found < _numbers(requirement.least) or (requirement.below and found >= _numbers(requirement.below)):
        needs = f"varla supports {requirement.supported}"
        return Version(package, version, supported, WRONG, f"{package} {version} is not supported: {needs}")
    if requirement.newest and found[:2] > _numbers(requirement.newest):
        remark = f"{package} {version} is newer than {requirement.newest}, the newest that varla was tested with"
        return Version(package, version, supported, UNTESTED, remark)
    return Version(package, version, supported, FINE)


def judge_all(installed: Mapping[str, str]) -> list[Version]:
    """Every package that varla has a range for."""
    return [judge(each, installed.get(each.package)) for each in REQUIREMENTS]


def ptxas_version(capability: tuple[int, int]) -> str | None:
    """The version of the assembler that Triton uses for GPUs of this compute capability; None if that is unknown."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        return str(get_ptxas(10 * capability[0] + capability[1]).version)
    except Exception:  # no Triton, none for NVIDIA, or one that has another interface
        return None


def ptxas_remark(version: str | None, capability: tuple[int, int]) -> str | None:
    """What is known against this assembler on this GPU; None if nothing is."""
    if version != BAD_PTXAS or capability[0] != HOPPER:
        return None
    return (
        f"ptxas {version} (it comes with Triton 3.6) compiles some kernels wrongly for GPUs of compute capability "
        f"{HOPPER}.x. varla's kernels avoid what is known to go wrong, and ptxas 12.9 does not have this bug"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(each) for each in match.group().split(".")) if match else ()
