"""Whether classes are uneven, and what helps."""

from collections.abc import Sequence
from typing import NamedTuple

SKEWED = 2.0  # the most frequent class over the rarest: from here on the accuracy says little about the rare one


class Skew(NamedTuple):
    """The most frequent and the rarest class with their images."""

    frequent: str
    most: int
    rare: str
    least: int

    @property
    def ratio(self) -> float:
        """How many times as frequent."""
        return self.most / self.least


def skew_of(classes: Sequence[str], counts: Sequence[int]) -> Skew | None:
    """How uneven classes are; None where they are about even, or fewer than two have images."""
    present = sorted((count, name) for name, count in zip(classes, counts, strict=True) if count)
    if len(present) < 2 or present[-1][0] < SKEWED * present[0][0]:
        return None
    (least, rare), (most, frequent) = present[0], present[-1]
    return Skew(frequent, most, rare, least)
