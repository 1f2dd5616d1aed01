"""The forms an operator can be computed in, and which of them can run here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Backend:
    """One form. `available` is False where it cannot run here, and `reason` then says why."""

    name: str
    summary: str
    available: bool
    reason: str | None = None


def _no_lapack() -> str | None:
    if torch._C.has_lapack:
        return None
    return "this build of PyTorch has no LAPACK, which the Cholesky factorisations need"


_FORMS: dict[str, tuple[str, Callable[[], str | None]]] = {
    "reference": ("Algorithm 1, one token at a time: the specification", lambda: None),
    "scan": ("Algorithm 2, corrected: S by an associative scan; T D x D matrices in memory", lambda: None),
    "chunk": ("the chunk-wise form in PyTorch, with a hand-written backward", _no_lapack),
}


def backends() -> dict[str, Backend]:
    """Every backend by name: what it is, whether it can run here, and if not, why not."""
    found = {}
    for name, (summary, missing) in _FORMS.items():
        reason = missing()
        found[name] = Backend(name, summary, reason is None, reason)
    return found
