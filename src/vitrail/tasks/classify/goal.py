"""What a decision is made for: a goal, and how validation chooses the offsets of logits that reach it."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.config import Choice, Positive, Rate
from vitrail.errors import ConfigError, nearest

MOST_CLASSES = 100  # more would take minutes
_SWEEPS = 5  # over all classes


class Moved(NamedTuple):
    """What becomes of decisions as the offset of one class rises: candidate c gives it the first c of N images."""

    hits: Tensor  # N+1 K: images of each class that are right
    predicted: Tensor  # N+1 K: images that each class is said of
    support: Tensor  # K
    said: Tensor  # N: what is said of each image instead, in the order in which they go over
    truth: Tensor  # N


@dataclass(frozen=True, kw_only=True)
class GoalConfig(Choice):
    """A goal; `of` names the class that it is about, where it is about one."""

    of: str | None = None

    @abstractmethod
    def values(self, moved: Moved, label: int, of: int | None) -> Tensor:
        """How good each candidate is when the offset of class `label` rises: N+1."""

    @abstractmethod
    def words(self, classes: Sequence[str]) -> str:
        """The goal in a few words."""

    def check(self, classes: Sequence[str], *, multi_label: bool) -> None:
        """ConfigError where the goal does not fit the classes."""
        if self.of is not None and self.of not in classes:
            raise ConfigError(f"task.goal.of is {self.of!r}, not a class of the data; {nearest(self.of, classes)}")
        if not multi_label and len(classes) > MOST_CLASSES:
            raise ConfigError(
                f"task.goal takes up to {MOST_CLASSES} classes; the data have {len(classes)}; leave it out"
            )

    def moves(self, count: int, of: int | None) -> list[int]:
        """The classes whose offset is chosen."""
        return [1] if count == 2 else list(range(count))


@dataclass(frozen=True, kw_only=True)
class F1Goal(GoalConfig, kind="f1"):
    """The largest F1: of one class, or the mean over classes."""

    def values(self, moved: Moved, label: int, of: int | None) -> Tensor:
        """F1 of `of`, or the mean."""
        f1 = 2 * moved.hits / (moved.support + moved.predicted).clamp(min=1)
        return f1[:, of] if of is not None else f1[:, moved.support > 0].mean(dim=1)

    def words(self, classes: Sequence[str]) -> str:
        """Of which class."""
        return "the largest macro F1" if self.of is None else f"the largest F1 of {self.of!r}"


@dataclass(frozen=True, kw_only=True)
class BalancedGoal(GoalConfig, kind="balanced_accuracy"):
    """The largest mean of the recalls of all classes."""

    def values(self, moved: Moved, label: int, of: int | None) -> Tensor:
        """The mean recall."""
        there = moved.support > 0
        return (moved.hits[:, there] / moved.support[there]).mean(dim=1)

    def words(self, classes: Sequence[str]) -> str:
        """As it is."""
        return "the largest balanced accuracy"


@dataclass(frozen=True, kw_only=True)
class RecallGoal(GoalConfig, kind="recall"):
    """At least a recall of one class, by default the rarest, and as few false alarms as that allows."""

    at_least: Rate = 0.95

    def values(self, moved: Moved, label: int, of: int | None) -> Tensor:
        """1 to 2 for candidates that reach the recall, the fewest decisions for the class first; else the recall."""
        recall = moved.hits[:, label] / moved.support[label].clamp(min=1)
        fewest = 1 - moved.predicted[:, label] / (len(recall) + 1)
        return torch.where(recall >= self.at_least, 1 + fewest, recall / 2)

    def words(self, classes: Sequence[str]) -> str:
        """The recall, and of which class."""
        return f"recall >= {self.at_least:g} of {'the rarest class' if self.of is None else repr(self.of)}"

    def moves(self, count: int, of: int | None) -> list[int]:
        """That class alone."""
        return [1 if of is None else of]


@dataclass(frozen=True, kw_only=True)
class CostGoal(GoalConfig, kind="cost"):
    """The lowest cost of mistakes: a `matrix` K K, rows the truth; or `miss` for an image of `of`, 1 for all others."""

    miss: Positive = 1.0
    matrix: tuple[tuple[float, ...], ...] | None = None

    def check(self, classes: Sequence[str], *, multi_label: bool) -> None:
        """The matrix fits the classes."""
        super().check(classes, multi_label=multi_label)
        count = len(classes)
        if self.matrix is None and self.of is None and not multi_label:
            raise ConfigError("task.goal cost needs a class (of) that is costly to miss, or a matrix")
        if self.matrix is not None and multi_label:
            raise ConfigError("task.goal.matrix is for one class an image; for labels set task.goal.miss")
        if self.matrix is not None and [len(row) for row in self.matrix] != [count] * count:
            raise ConfigError(f"task.goal.matrix must have {count} rows of {count} costs, one for each class")

    def costs(self, count: int, of: int | None) -> Tensor:
        """K K: rows the truth, columns what is said."""
        if self.matrix is not None:
            return torch.tensor(self.matrix, dtype=torch.float64)
        costs = 1 - torch.eye(count, dtype=torch.float64)
        costs[1 if of is None else of] *= self.miss
        return costs

    def values(self, moved: Moved, label: int, of: int | None) -> Tensor:
        """The negative cost, up to a constant."""
        costs = self.costs(len(moved.support), of)
        change = costs[moved.truth, label] - costs[moved.truth, moved.said]
        return -torch.cat([change.new_zeros(1), change.cumsum(0)])

    def words(self, classes: Sequence[str]) -> str:
        """What is costly."""
        if self.matrix is not None:
            return "the lowest cost (by a matrix)"
        return f"the lowest cost (a missed {'label' if self.of is None else repr(self.of)} costs {self.miss:g})"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What validation adopted: offsets that are added to logits before the largest decides, and what came of it."""

    offsets: tuple[float, ...] = ()
    about: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"offsets": list(self.offsets)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], count: int) -> "Decision":
        """The inverse of `to_dict` for so many classes; ValueError where the offsets are not theirs."""
        offsets = tuple(float(one) for one in data.get("offsets", ()))
        if len(offsets) not in (0, count) or not all(math.isfinite(one) for one in offsets):
            raise ValueError(f"expected {count} finite offsets of classes, found {offsets}")
        return cls(offsets=offsets, about=str(data.get("about", "")))


def choose_offsets(goal: GoalConfig, logits: Tensor, labels: Tensor, of: int | None) -> Tensor:
    """The offsets K that reach a goal on logits N K and classes N; of equals, those closest to zero.

    With two classes all thresholds are tried; with more, one class after the other, until nothing gets better.
    """
    logits, count = logits.double(), logits.shape[1]
    offsets = logits.new_zeros(count)
    for _ in range(1 if len(goal.moves(count, of)) == 1 else _SWEEPS):
        before = offsets.clone()
        for label in goal.moves(count, of):
            offsets[label] = _best(goal, logits, labels, offsets, label=label, of=of)
        if torch.equal(before, offsets):
            break
    return offsets


def _best(goal: GoalConfig, logits: Tensor, labels: Tensor, offsets: Tensor, *, label: int, of: int | None) -> float:
    """The best offset of one class, the others given."""
    count = logits.shape[1]
    others = (logits + offsets).index_fill(1, torch.tensor([label]), -torch.inf)
    best_other, said = others.max(dim=1)
    margins, order = (best_other - logits[:, label]).sort(stable=True)  # an offset above it decides for the class
    said, truth = said[order], labels[order]
    went = torch.nn.functional.one_hot(said, count).double()
    right = went * (said == truth)[:, None]
    came = torch.nn.functional.one_hot(torch.full_like(said, label), count).double()
    hit = came * (truth == label)[:, None]
    first = logits.new_zeros(1, count)
    predicted = went.sum(dim=0) + torch.cat([first, (came - went).cumsum(0)])  # N+1 K
    hits = right.sum(dim=0) + torch.cat([first, (hit - right).cumsum(0)])
    support = torch.bincount(labels, minlength=count).double()
    values = goal.values(Moved(hits, predicted, support, said, truth), label, of)
    now = float(offsets[label])
    low = torch.cat([margins[:1] - 2, margins])  # candidate c has offsets between low and high
    high = torch.cat([margins, margins[-1:] + 2])
    middle = torch.where((low < now) & (now < high), now, (low + high) / 2)
    values = torch.where(low < high, values, -torch.inf)
    tied = values >= values.max() - 1e-12
    return float(middle[torch.where(tied, (middle - now).abs(), torch.inf).argmin()])


def rarest(labels: Tensor, count: int) -> int:
    """The class with the fewest images, of those that have some."""
    support = torch.bincount(labels, minlength=count)
    return int(torch.where(support > 0, support, len(labels) + 1).argmin())


def decide(goal: GoalConfig, logits: Tensor, labels: Tensor, classes: Sequence[str]) -> Decision:
    """The offsets for logits N K and classes N of validation images, and what they change there."""
    of = classes.index(goal.of) if goal.of is not None else None
    if of is None and goal.kind == "recall":
        of = rarest(labels, len(classes))
    offsets = choose_offsets(goal, logits, labels, of).float()
    shown = of if of is not None else rarest(labels, len(classes))
    before, after = (_figures(scores.argmax(dim=1), labels, shown) for scores in (logits, logits.float() + offsets))
    changes = ", ".join(f"{name} {100 * old:.1f} to {100 * after[name]:.1f} %" for name, old in before.items())
    count = int((labels == shown).sum())
    about = (
        f"decides for {goal.words(classes)}, adopted on {len(labels):,} validation images, {count:,} of them "
        f"{classes[shown]!r}: its {changes} (on the same images, so a little optimistic)"
    )
    return Decision(offsets=tuple(offsets.tolist()), about=about)


def _figures(said: Tensor, labels: Tensor, label: int) -> dict[str, float]:
    hits = int(((said == label) & (labels == label)).sum())
    return {
        "recall": hits / max(int((labels == label).sum()), 1),
        "precision": hits / max(int((said == label).sum()), 1),
    }


def label_thresholds(goal: GoalConfig, logits: Tensor, marks: Tensor, classes: Sequence[str], usual: Tensor) -> Tensor:
    """The thresholds K of labels that reach a goal on logits N K and marks N K bool.

    Labels that the goal is not about, and those that all images have or none, keep their `usual` ones.
    """
    found = usual.clone()
    for label, name in enumerate(classes):
        truth = marks[:, label].long()
        if 0 < int(truth.sum()) < len(truth) and goal.of in (None, name):
            pair = torch.stack([torch.zeros(len(logits)), logits[:, label].float()], dim=1)  # no, yes
            found[label] = torch.sigmoid(-choose_offsets(goal, pair, truth, 1)[1])
    return found
