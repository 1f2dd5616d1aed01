"""Which options a mechanism takes, read from the signatures of its classes."""

import inspect
from typing import Any

from torch import nn


def options_of(kind: type[nn.Module]) -> dict[str, Any]:
    """Keyword options and their defaults: the class's own and, where it hands the rest on, its parents'."""
    found: dict[str, Any] = {}
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        found.update({p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in found})
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found
