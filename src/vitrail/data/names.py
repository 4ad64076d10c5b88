"""Names of classes that deserve a second look: most likely one class twice, several in one, or one misspelt."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from vitrail.errors import listed

_CLOSE = 0.75  # how alike names must be to be one with a slip of the pen
_LONG = 5  # letters from which on any letter may have slipped: a cat is no misspelt coat
_SHOWN = 20  # classes that a sentence lists


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


def told_unknown(source: str, names: Sequence[str], classes: Sequence[str]) -> str | None:
    """A sentence about names of data that are no classes of those who judge it; None where all are known."""
    known = set(classes)
    if not (unknown := [name for name in names if name not in known]):
        return None
    noun, are = ("a class", "is") if len(unknown) == 1 else ("classes", "are")
    free = known.difference(names)
    slips = {name: misspelt(name, free) for name in unknown}
    if len(unknown) == len(names) and not all(slips.values()):
        slips = {}  # data of something else altogether
    shown = [repr(name) + (f" ({meant!r}?)" if (meant := slips.get(name)) else "") for name in unknown]
    return (
        f"{source} has {noun} that {are} not among the {len(classes)} classes of the training data: {listed(shown)}; "
        f"rename or remove what is not one of {listed(classes, _SHOWN)}"
    )


def misspelt(name: str, classes: Collection[str]) -> str | None:
    """The class that a name is most likely a slip of the pen for.

    `classes` are those that nothing else claims: where there are cats already, cars are no misspelt cats. Short words
    that differ by a letter are different words, unless one holds the other or has its letters in another order.
    """
    folded = {one.casefold(): one for one in sorted(classes)}
    word = name.casefold()
    for close in difflib.get_close_matches(word, list(folded), cutoff=_CLOSE):
        if len(word) >= _LONG or word in close or close in word:
            return folded[close]
    return next((one for key, one in folded.items() if sorted(key) == sorted(word)), None)
