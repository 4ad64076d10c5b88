"""Broken images: how many of them a source may have, counted over all its splits, and how they are told."""

from collections.abc import Iterable, Sequence

from vitrail.errors import DataError, listed
from vitrail.report import show

MAX_BROKEN = 0.01  # of all images of a source: more than this is no accident
_NAMED = 5  # broken images that a sentence names

Skipped = tuple[tuple[str, str], ...]  # names and reasons


def too_many(broken: int, total: int) -> bool:
    """Whether so many broken images stop training."""
    return broken / max(total, 1) > MAX_BROKEN  # a quotient, as 0.01 * 2,900 is less than 29


class Tally:
    """Counts the broken images of a source while its splits are read one after another, each image once.

    The limit is of all images together: which split a broken image falls into is chance.
    """

    def __init__(self, total: int) -> None:
        self.total, self.found = total, dict[str, str]()  # names and reasons

    def add(self, new: Iterable[tuple[str, str]]) -> None:
        """More broken images; DataError with names and advice as soon as there are too many."""
        self.found |= new
        if too_many(len(self.found), self.total):
            shown = named(list(self.found.items()))
            raise DataError(
                f"{len(self.found):,} or more of {self.total:,} images cannot be read, over the limit of "
                f"{show(MAX_BROKEN, 'share')}: {shown}. Repair or remove them; `vitrail doctor` lists them all"
            )


def named(broken: Sequence[tuple[str, str]]) -> str:
    """The first few with their reasons, and how many more there are."""
    told = [reason if reason.startswith(where) else f"{where}: {reason}" for where, reason in broken[:_NAMED]]
    more = [f"and {len(broken) - _NAMED:,} more"] if len(broken) > _NAMED else []
    return "; ".join([*told, *more])


def left_out(broken: Sequence[tuple[str, str]]) -> str:
    """What a run says of the images that it goes without."""
    many = f"{len(broken):,} broken images were left out" if len(broken) > 1 else "left out as broken"
    return f"{many}: {named(broken)}"


def lost(classes: Sequence[str], before: Sequence[int], after: Sequence[int]) -> tuple[str, ...]:
    """The classes that had images, and have none that can be read."""
    return tuple(name for name, had, has in zip(classes, before, after, strict=True) if had and not has)


def lost_from_split(split: str, names: Sequence[str]) -> str:
    """What is said of classes without a readable image in a split: such a class cannot be learned, or not be judged."""
    what = "cannot be learned" if split == "train" else "is not judged"
    shown = listed(map(repr, names), _NAMED)
    return f"every image of {shown} in the {split} split is broken, so that it {what}: repair them or add others"
