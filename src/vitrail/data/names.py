"""Names of classes that deserve a second look: most likely one class twice, or several in one."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence


def alike(classes: Iterable[str]) -> list[tuple[str, ...]]:
    """The names that differ by case or blanks alone, together."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        found[" ".join(name.split()).casefold()].append(name)
    return [tuple(names) for names in found.values() if len(names) > 1]


def told_alike(classes: Iterable[str]) -> Iterator[str]:
    """A sentence about those, where there are any."""
    if groups := [" and ".join(map(repr, names)) for names in alike(classes)]:
        yield (
            f"Names of classes that differ by case or blanks alone: {listed(groups)}. Each is a class of its own; if "
            "they mean the same, give them one name."
        )


def composed(classes: Sequence[str]) -> list[str]:
    """The names of several words, each of which is a class too: "red short" beside "red" and "short"."""
    known = set(classes)
    return [name for name in classes if len(words := set(name.split())) > 1 and words <= known]


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")
