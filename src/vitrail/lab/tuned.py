"""Values that an experiment chooses from a grid, and where the best of them lies at an edge of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any


def choose(grid: Sequence[float], score: Callable[[float], float]) -> dict[str, Any]:
    """The value of a grid with the highest score, as results keep it; of equal ones the first."""
    scores = [score(value) for value in grid]
    return chosen(grid[max(range(len(grid)), key=scores.__getitem__)], grid) | {"scores": scores}


def chosen(value: float, grid: Sequence[float]) -> dict[str, Any]:
    """A value with the grid that it was chosen from, as results keep it."""
    return {"chosen": value, "grid": list(grid)}


def edges(results: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on what was chosen at an edge of its grid, for any seed; empty where nothing was."""
    made = (choice for result in results for choice in _choices(result))
    found = [(path, one["grid"], one["chosen"]) for path, one in made if one["chosen"] in _ends(one["grid"])]
    parts = []
    for (path, grid), group in groupby(sorted(found, key=lambda one: one[:2]), key=lambda one: one[:2]):
        values = [value for *_, value in group]
        named = " and ".join(f"{value:g}" for value in dict.fromkeys(values))
        low, high = _ends(grid)
        parts.append(f"{' '.join(path)} {named} (tried {low:g} to {high:g}; {len(values)} of {len(results)} seeds)")
    if not parts:
        return ""
    return f"Chosen at an edge of what was tried, so that a wider grid may give another verdict: {'; '.join(parts)}"


def _ends(grid: Sequence[float]) -> tuple[float, float]:
    return min(grid), max(grid)


def _choices(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Everything in results that was chosen from a grid, with the keys that lead there."""
    if isinstance(value, Mapping) and {"chosen", "grid"} <= value.keys():
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _choices(part, (*path, key.replace("_", " ")))
