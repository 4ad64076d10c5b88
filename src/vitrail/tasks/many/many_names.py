"""Names of what belongs to one of many tasks: outputs and metrics "detect.boxes", outputs to explain "detect:box 3"."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

V = TypeVar("V")


def joined(parts: Mapping[str, Mapping[str, V]]) -> dict[str, V]:
    """Values of all tasks by their full names."""
    return {full(task, name): value for task, values in parts.items() for name, value in values.items()}


def part_of(values: Mapping[str, V], task: str) -> dict[str, V]:
    """The values of one task by their own names."""
    start = full(task, "")
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def full(task: str, name: str) -> str:
    """The full name of an output, metric or column."""
    return f"{task}.{name}"


def explained_names(parts: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The full names of outputs that can be explained."""
    return tuple(f"{task}:{name}" for task, names in parts.items() for name in names)
