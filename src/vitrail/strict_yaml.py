"""Strict YAML: plain values alone; no anchors that repeat each other, no merged keys, no endless numbers.

A few lines of YAML can stand for billions of values, which only take memory when somebody looks at them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import yaml

_DIGITS = 40  # of a number: `1:1:1...` is one, too, to the base of 60
_WORDS = 300  # of an error


class _Loader(yaml.SafeLoader):
    """safe_load's, without merged keys (`<<`), which can multiply without end."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuses what would be merged."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merged keys (<<) are not supported", node.start_mark)
        super().flatten_mapping(node)


def _short(construct: Callable[[Any, Any], Any]) -> Callable[[_Loader, Any], Any]:
    def constructed(loader: _Loader, node: Any) -> Any:
        if len(str(node.value)) > _DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        return construct(loader, node)

    return constructed


_Loader.add_constructor("tag:yaml.org,2002:int", _short(yaml.SafeLoader.construct_yaml_int))
_Loader.add_constructor("tag:yaml.org,2002:float", _short(yaml.SafeLoader.construct_yaml_float))


def from_yaml(text: str, *, most: int) -> Any:
    """What a YAML text holds, `most` values with those that anchors repeat; ValueError in one sentence."""
    try:
        found = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, AttributeError, TypeError) as error:  # PyYAML's own slips among the latter
        raise ValueError(" ".join(str(error).split())[:_WORDS]) from error
    waiting = [found]
    for _ in range(most):
        if not waiting:
            return found
        node = waiting.pop()
        if isinstance(node, Mapping):
            waiting += [*node, *node.values()]
        elif isinstance(node, list | tuple | set):
            waiting += node
    raise ValueError(f"it has more than {most:,} values; do its anchors (&, *) repeat each other?")
