"""Class names that the user should check: duplicates by spelling, several classes in one name, typos."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from vitrail.errors import listed

_CLOSE = 0.75  # similarity from which a name counts as a typo of another
_LONG = 5  # letters; shorter words that differ by a letter are different words: cat, coat
_SHOWN = 20  # classes that a message lists


def similar_names(classes: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of names that differ only in case or spaces."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        groups[" ".join(name.split()).casefold()].append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def notes_on_similar(classes: Iterable[str]) -> Iterator[str]:
    """A sentence about names that differ only in case or spaces, if there are any."""
    if groups := [" and ".join(map(repr, names)) for names in similar_names(classes)]:
        yield (
            f"Class names that differ only in case or spaces: {listed(groups)}. Each is a separate class; if they mean "
            "the same, use one name."
        )


def composed(classes: Sequence[str]) -> list[str]:
    """Names of several words that are all classes themselves: "red short" beside "red" and "short"."""
    known = set(classes)
    return [name for name in classes if len(words := set(name.split())) > 1 and words <= known]


def unknown_classes_error(source: str, names: Sequence[str], classes: Sequence[str]) -> str | None:
    """An error message about names in a dataset that are not classes of the training data; None if all are."""
    known = set(classes)
    if not (unknown := [name for name in names if name not in known]):
        return None
    noun, are = ("a class", "is") if len(unknown) == 1 else ("classes", "are")
    unused = known.difference(names)
    typos = {name: misspelt(name, unused) for name in unknown}
    if len(unknown) == len(names) and not all(typos.values()):
        typos = {}  # a dataset of something else: guesses would mislead
    shown = [repr(name) + (f" ({meant!r}?)" if (meant := typos.get(name)) else "") for name in unknown]
    return (
        f"{source} has {noun} that {are} not among the {len(classes)} classes of the training data: {listed(shown)}; "
        f"rename or remove what is not one of {listed(classes, _SHOWN)}"
    )


def misspelt(name: str, classes: Collection[str]) -> str | None:
    """The class that a name is most likely a typo of; None if there is none.

    `classes` are those that the dataset does not use otherwise: if it has cats, then "cars" is not a typo of them.
    Short words that differ by a letter are different words, unless one contains the other or the letters are swapped.
    """
    folded = {one.casefold(): one for one in sorted(classes)}
    word = name.casefold()
    for close in difflib.get_close_matches(word, list(folded), cutoff=_CLOSE):
        if len(word) >= _LONG or word in close or close in word:
            return folded[close]
    return next((one for key, one in folded.items() if sorted(key) == sorted(word)), None)
