"""Lists of layer, head and row indices as a user writes them; negative indices count from the end."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from vitrail.errors import ConfigError


def resolve_indices(chosen: Tensor | Sequence[int] | None, count: int, name: str, plural: str) -> list[int]:
    """Chosen indices, all by default, as indices from 0; an index out of range is an error."""
    indices = range(count) if chosen is None else check_indices(chosen, name)
    if invalid := [index for index in indices if not -count <= index < count]:
        raise ConfigError(f"{name} {invalid[0]} does not exist; there are {count} {plural}, 0 to {count - 1}")
    return [index % count for index in indices]


def check_indices(chosen: Tensor | Sequence[int], name: str) -> list[int]:
    """A list of integers; anything else, such as a single number or a mask, is an error."""
    given: Any = chosen.tolist() if isinstance(chosen, Tensor) else chosen
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name}s is {given!r}; it must be a list of integers, such as [0, -1]")
    indices = list(given)
    if not indices:
        raise ConfigError(f"{name}s is empty; give at least one {name}, or leave it out for all")
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, Integral):
            raise ConfigError(f"{name}s contains {index!r}; it must be a list of integers, such as [0, -1]")
    return [int(index) for index in indices]
