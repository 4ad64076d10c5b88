"""Layers, heads and rows as a person names them: lists of numbers, where negative ones count from the end."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from vitrail.errors import ConfigError


def numbers(chosen: Tensor | Sequence[int] | None, count: int, one: str, many: str) -> list[int]:
    """Chosen numbers, all by default, counted from 0; one that is not there is an error."""
    wanted = range(count) if chosen is None else listed(chosen, one)
    if wrong := [number for number in wanted if not -count <= number < count]:
        raise ConfigError(f"{one} {wrong[0]} does not exist; there are {count} {many}, 0 to {count - 1}")
    return [number % count for number in wanted]


def listed(chosen: Tensor | Sequence[int], one: str) -> list[int]:
    """Whole numbers as they were given; what is no list of them, such as one number or a mask, is an error."""
    given: Any = chosen.tolist() if isinstance(chosen, Tensor) else chosen
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{one}s is {given!r}; it must be a list of numbers, such as [0, -1]")
    found = list(given)
    if not found:
        raise ConfigError(f"{one}s is empty; name at least one {one}, or leave it out for all")
    for number in found:
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise ConfigError(f"{one}s holds {number!r}; it must be a list of whole numbers, such as [0, -1]")
    return [int(number) for number in found]
