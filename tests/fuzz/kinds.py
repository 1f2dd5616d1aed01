"""All kinds by name."""

from collections.abc import Callable
from pathlib import Path

from tests.fuzz import files, operators, settings
from tests.fuzz.core import Attempt

KINDS: dict[str, Callable[[Path], Attempt]] = {
    "state": files.states,
    "session": files.sessions,
    "forged": files.forged,
    "checkpoint": files.checkpoints,
    "tokens": files.tokens,
    "record": files.records,
    "yaml": settings.files,
    "set": settings.assignments,
    "config": settings.models,
    "operator": operators.operators,
    "forms": operators.forms,
    "gradients": operators.gradients,
}
