"""The package as `import varla` shows it. griffe reads the source, where two things look different.

Operators have **options, and a decorator that lists the keywords (`varla.ops.dispatch.accepts`). And `varla.ops.vla` is
a module in the source, but the function once `varla.ops` is imported.
"""

import importlib
import inspect
from typing import Any

import griffe

KINDS: dict[Any, griffe.ParameterKind] = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class Signatures(griffe.Extension):
    """Correct the names of `varla`, and the signatures of its operators."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Once the whole package is read."""
        if pkg.path != "varla":
            return
        package = importlib.import_module(pkg.path)
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                pkg.set_member(name, griffe.Alias(name, f"{value.__module__}.{value.__qualname__}", parent=pkg))
            if inspect.isfunction(value):
                self._sign(pkg[f"{value.__module__.removeprefix('varla.')}.{name}"], inspect.signature(value))

    def _sign(self, function: griffe.Function, signature: inspect.Signature) -> None:
        function.parameters = griffe.Parameters(*map(_parameter, signature.parameters.values()))
        function.overloads = None


def _parameter(found: inspect.Parameter) -> griffe.Parameter:
    default = None if found.default is found.empty else repr(found.default)
    return griffe.Parameter(found.name, kind=KINDS[found.kind], default=default)
