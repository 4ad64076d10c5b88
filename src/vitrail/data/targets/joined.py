"""Detects labels joined by something other than |: each such cell would silently become one class."""

from collections import Counter
from collections.abc import Iterable, Sequence

SEPARATOR = "|"
_OTHERS = (";", ",")
_IN_NAMES = "/"  # common inside names, as in "T-shirt/top", so it alone proves nothing


def split_labels(cell: str, separator: str = SEPARATOR) -> list[str]:
    """The labels of a cell."""
    return [name.strip() for name in cell.split(separator) if name.strip()]


def joined_by(cells: Sequence[str], *, several: bool) -> tuple[str, str] | None:
    """A label that is most likely several labels, and their separator; None if there is none.

    `several`: cells may hold several labels, joined by |. A class can be named "Paris, France", so a label counts as
    joined only if each of its parts is a label elsewhere. If no cell uses |, it is enough that each part occurs in
    another label too, as in red;blue, blue;green and green;red. If most labels with the separator do not meet this,
    the separator belongs to the names, as in WordNet's "blade, vane".
    """
    names = sorted({name for cell in cells for name in (split_labels(cell) if several else [cell])})
    unused = several and not any(SEPARATOR in cell for cell in cells)
    for separator in (*(() if several else (SEPARATOR,)), *_OTHERS, _IN_NAMES):
        pieces = {name: set(split_labels(name, separator)) for name in names}
        uses = Counter(piece for parts in pieces.values() for piece in parts)
        repeats = unused or (not several and separator in "|;")  # one class may be named "Smith, John"
        marked = [name for name, parts in pieces.items() if len(parts) > 1]
        suspects = [
            name for name in marked if all(part in pieces or (repeats and uses[part] > 1) for part in pieces[name])
        ]
        if suspects and 2 * len(suspects) >= len(marked):
            return suspects[0], separator
    return _by_spaces(names) if unused else None


def _by_spaces(names: Sequence[str]) -> tuple[str, str] | None:
    """The same for spaces: all words of all longer names occur in other names."""
    pieces = {name: set(name.split()) for name in names}
    uses = Counter(piece for parts in pieces.values() for piece in parts)
    longer = [name for name, parts in pieces.items() if len(parts) > 1]
    if longer and all(uses[part] > 1 for name in longer for part in pieces[name]):
        return longer[0], " "
    return None


def with_marks(names: Iterable[str], *, several: bool) -> list[str]:
    """The labels that contain a separator."""
    marks = _OTHERS if several else (SEPARATOR, *_OTHERS)
    return [name for name in names if any(mark in name for mark in marks)]
