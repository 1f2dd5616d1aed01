"""YAML from untrusted sources: no tags that build objects, and limits on size, depth and aliases.

PyYAML has no limits of its own. A kilobyte of aliases of aliases expands to gigabytes, and its parser recurses once
for every bracket.
"""

from typing import Any

import yaml

SIZE = 1 << 20  # bytes
VALUES = 100_000  # keys and values, aliases expanded
DEPTH = 32  # groups within groups, aliases expanded


def parse(text: str) -> Any:
    """The value that a YAML document holds. Everything that is wrong with it is a ValueError."""
    if len(text) > SIZE:
        raise ValueError(f"it has more than {SIZE:,} characters")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except (KeyError, AttributeError, TypeError) as error:  # a tag that does not fit its value: !!bool maybe
        raise ValueError(f"a tag does not fit its value ({type(error).__name__}: {error})") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with a limit on depth: it stops before Python's own limit on recursion."""

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node, and all within it."""
        self.depth += 1
        if self.depth > DEPTH:
            raise _too_deep()
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """(values, depth) of a node with its aliases expanded. Raises if either is too large, or a key is repeated.

    `known` has what was measured before. It holds None while a node is being measured: an alias that leads there is a
    circle.
    """
    if isinstance(node, yaml.ScalarNode):
        node.value.encode()  # "\ud800" is half of a character, which no file or terminal takes: a ValueError
        return 1, 1
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise ValueError("a value contains itself")
        return found
    known[id(node)] = None
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        parts = [part for pair in node.value for part in pair]
    else:
        parts = list(node.value)
    sizes = [_measure(part, known) for part in parts]
    values, depth = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
    if values > VALUES:
        raise ValueError(f"it holds more than {VALUES:,} values, with its aliases expanded")
    if depth > DEPTH:
        raise _too_deep()
    known[id(node)] = values, depth
    return values, depth


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuse a repeated key: PyYAML would use the last one in silence. The merge key << may be repeated."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
            if key.value in seen:
                raise ValueError(f"key {key.value!r} is given twice (line {key.start_mark.line + 1})")
            seen.add(key.value)


def _too_deep() -> ValueError:
    return ValueError(f"it holds groups within groups, more than {DEPTH} deep")
