"""Whether classes are uneven, and what helps: the remedies with their measured effect."""

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


class Effect(NamedTuple):
    """What a remedy did: the recall of the rare class and the balanced accuracy in percent, means of three seeds."""

    option: str  # of `vitrail train`
    recall: float
    balanced: float


# Two classes of Fashion-MNIST that look alike, 900 and 90 training images, 200 and 200 test images; by
# benchmarks/imbalance.py (docs/small-data.md has the whole table with spreads).
WITHOUT = Effect("", 43.5, 71.0)
EFFECTS = (
    Effect("--sampling balanced", 77.7, 82.8),
    Effect("--set task.class_weights=effective", 74.2, 80.9),
    Effect("--set task.loss=logit_adjusted", 78.5, 80.7),
    Effect("--goal balanced_accuracy", 68.5, 76.3),
)


def remedies() -> str:
    """The remedies in a sentence, with what they did where it was measured."""
    each = ", ".join(f"{one.option} {one.recall:.0f} % ({one.balanced:.0f} %)" for one in EFFECTS)
    return (
        f"Measured with 900 images of one class and 90 of another that looks alike: recall of the rare one "
        f"{WITHOUT.recall:.0f} % (balanced accuracy {WITHOUT.balanced:.0f} %) without a remedy; {each}"
    )
