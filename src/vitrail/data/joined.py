"""Labels that a table joins by another mark than |: each such cell would become one class, without a word."""

from collections import Counter
from collections.abc import Iterable, Sequence

SEPARATOR = "|"
_OTHERS = (";", ",")
_IN_NAMES = "/"  # so common in names, as in "T-shirt/top", that it alone is no reason for a word


def split_labels(cell: str, separator: str = SEPARATOR) -> list[str]:
    """The labels of a cell."""
    return [name.strip() for name in cell.split(separator) if name.strip()]


def joined_by(cells: Sequence[str], *, several: bool) -> tuple[str, str] | None:
    """A label that is most likely several, and what joins them; None where there is none.

    `several`: the cells may hold more than one, joined by |. A class may well be called "Paris, France": a label counts
    as joined where each of its pieces is a label of its own elsewhere. Where nobody has used a | that would be
    understood, it is enough that each piece occurs in another label too, as in red;blue, blue;green and green;red.
    Where most labels with the mark are none of these, the mark is a part of names, as in WordNet's "blade, vane".
    """
    names = sorted({name for cell in cells for name in (split_labels(cell) if several else [cell])})
    unaware = several and not any(SEPARATOR in cell for cell in cells)
    for separator in (*(() if several else (SEPARATOR,)), *_OTHERS, _IN_NAMES):
        pieces = {name: set(split_labels(name, separator)) for name in names}
        uses = Counter(piece for parts in pieces.values() for piece in parts)
        repeats = unaware or (not several and separator in "|;")  # one class may be called "Smith, John"
        marked = [name for name, parts in pieces.items() if len(parts) > 1]
        suspects = [
            name for name in marked if all(part in pieces or (repeats and uses[part] > 1) for part in pieces[name])
        ]
        if suspects and 2 * len(suspects) >= len(marked):
            return suspects[0], separator
    return _by_spaces(names) if unaware else None


def _by_spaces(names: Sequence[str]) -> tuple[str, str] | None:
    """The same for words: many a class has two, but not all of them words of other classes."""
    pieces = {name: set(name.split()) for name in names}
    uses = Counter(piece for parts in pieces.values() for piece in parts)
    longer = [name for name, parts in pieces.items() if len(parts) > 1]
    if longer and all(uses[part] > 1 for name in longer for part in pieces[name]):
        return longer[0], " "
    return None


def with_marks(names: Iterable[str], *, several: bool) -> list[str]:
    """The labels with a mark in them that joins labels elsewhere."""
    marks = _OTHERS if several else (SEPARATOR, *_OTHERS)
    return [name for name in names if any(mark in name for mark in marks)]
