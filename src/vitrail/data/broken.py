"""Broken images: the limit for all splits of a source together, and messages about them."""

from collections.abc import Iterable, Sequence

from vitrail.errors import DataError, listed
from vitrail.report import show

MAX_BROKEN = 0.01  # share of all images of a source
_SHOWN = 5  # broken images that a message lists

Skipped = tuple[tuple[str, str], ...]  # names and reasons


def too_many(broken: int, total: int) -> bool:
    """Whether this many broken images stop training."""
    return broken / max(total, 1) > MAX_BROKEN  # a quotient, as 0.01 * 2,900 is less than 29


class Tally:
    """Counts the broken images of a source while its splits are read, each image once.

    The limit applies to all splits together, because chance decides which split a broken image is in.
    """

    def __init__(self, total: int) -> None:
        self.total, self.found = total, dict[str, str]()  # names and reasons

    def add(self, new: Iterable[tuple[str, str]]) -> None:
        """Adds broken images; DataError as soon as there are too many."""
        self.found |= new
        if too_many(len(self.found), self.total):
            shown = named(list(self.found.items()))
            raise DataError(
                f"{len(self.found):,} or more of {self.total:,} images cannot be read, over the limit of "
                f"{show(MAX_BROKEN, 'share')}: {shown}. Repair or remove them; `vitrail doctor` lists them all"
            )


def named(broken: Sequence[tuple[str, str]]) -> str:
    """The first few with their reasons, and the number of the others."""
    shown = [reason if reason.startswith(where) else f"{where}: {reason}" for where, reason in broken[:_SHOWN]]
    more = [f"and {len(broken) - _SHOWN:,} more"] if len(broken) > _SHOWN else []
    return "; ".join([*shown, *more])


def left_out(broken: Sequence[tuple[str, str]]) -> str:
    """A note on the images that a run leaves out."""
    many = f"{len(broken):,} broken images were left out" if len(broken) > 1 else "left out as broken"
    return f"{many}: {named(broken)}"


def lost_from_split(split: str, names: Sequence[str]) -> str:
    """A message about classes without a readable image in a split."""
    what = "cannot be learned" if split == "train" else "is not evaluated"
    shown = listed(map(repr, names), _SHOWN)
    return f"every image of {shown} in the {split} split is broken, so it {what}: repair them, or add others"
