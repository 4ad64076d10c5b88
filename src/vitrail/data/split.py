"""Splits: a validation part carved out by itself, classes brought into line, and gaps refused."""

import hashlib
from collections import Counter, defaultdict
from typing import Protocol

import torch
from torch import Tensor

from vitrail.data.dataset import Carved, Dataset, Found, Relabelled, Splits
from vitrail.data.names import alike, told_alike, told_unknown
from vitrail.errors import DataError, listed

VAL_SHARE = 0.1


def complete(found: Found, *, val: Dataset | float | None, seed: int) -> Splits:
    """Splits of what a reader found; without a validation part of its own, one is carved out of train."""
    train = found.train
    notes = [*found.notes, *told_alike(train.classes)]
    if isinstance(val, Dataset):
        held = val
        notes.append(f"Validation comes from {val.name}, as asked.")
        if found.val is not None:
            notes.append(f"The validation part of {train.name} itself ({len(found.val):,} images) is not used.")
    elif found.val is not None:
        if val is not None:
            raise DataError(
                f"{train.name} has a validation part of its own ({len(found.val):,} images), so val={val} has no "
                "place; leave it out, or move those images to train"
            )
        held = found.val
    else:
        share = VAL_SHARE if val is None else val
        train, held = carve(train, share, seed)
        why = "as asked" if val is not None else "since the data has no validation part"
        notes.append(
            f"Validation is {len(held):,} of {len(found.train):,} training images ({100 * share:g} % of each class), "
            f"{why}; which ones is decided by a hash of each sample's name, so that adding files moves hardly any."
        )
    return Splits(*_aligned(train, held, found.test), notes=tuple(notes), empty=found.empty)


def carve(whole: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Two parts, the second with `share` of each class: the samples whose names have the lowest hashes.

    A class of two images or more has at least one in each part. An added sample moves at most one other.
    """
    if not 0.0 < share < 1.0:
        raise DataError(f"the validation share is {share:g}; it must be between 0 and 1, for instance {VAL_SHARE:g}")
    strata: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for index, stratum in enumerate(_strata(whole.labels)):
        name = f"{seed}:{whole.key(index)}".encode("utf-8", "surrogateescape")
        strata[stratum].append((hashlib.sha256(name).digest(), index))
    chosen: set[int] = set()
    for members in strata.values():
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        chosen.update(index for _, index in sorted(members)[:count])
    kept = [index for index in range(len(whole)) if index not in chosen]
    return Carved(whole, kept), Carved(whole, sorted(chosen))


def _strata(labels: Tensor) -> list[int]:
    """The class of each sample; of several, the rarest, and -1 for none."""
    if labels.ndim == 1:
        return [int(label) for label in labels.tolist()]
    rarity = labels.sum(dim=0)  # K
    alone = torch.where(labels > 0, rarity, torch.inf)  # N K
    return torch.where(labels.any(dim=1), alone.argmin(dim=1), -1).tolist()


def align(dataset: Dataset, classes: tuple[str, ...], *, multi_label: bool) -> Dataset:
    """The data set with its labels counted by other classes, matched by name; a class that is not there is an error."""
    if dataset.classes == classes and dataset.multi_label == multi_label:
        return dataset
    if dataset.multi_label and not multi_label:
        raise DataError(f"{dataset.name} has several labels an image, where one is expected; give it a label column")
    if (told := told_unknown(dataset.name, dataset.classes, classes)) is not None:
        raise DataError(told)
    position = {name: index for index, name in enumerate(classes)}
    moved = torch.tensor([position[name] for name in dataset.classes])
    if not multi_label:
        return Relabelled(dataset, moved[dataset.labels], classes)
    labels = torch.zeros(len(dataset), len(classes))
    if dataset.multi_label:
        labels[:, moved] = dataset.labels
    else:
        labels[torch.arange(len(dataset)), moved[dataset.labels]] = 1.0
    return Relabelled(dataset, labels, classes)


def _aligned(train: Dataset, val: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset, Dataset | None]:
    """All parts by the classes of train; several labels an image anywhere mean several everywhere."""
    several = any(part.multi_label for part in (train, val, test) if part is not None)
    train = align(train, train.classes, multi_label=several)
    val = align(val, train.classes, multi_label=several)
    return train, val, None if test is None else align(test, train.classes, multi_label=several)


class Labelled(Protocol):
    """What has labels of classes: a data set, or its images when they are packed."""

    @property
    def labels(self) -> Tensor:
        """N int64, or N K float32."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several."""


def counts(dataset: Labelled) -> list[int]:
    """How many images of each class."""
    if dataset.multi_label:
        return [int(count) for count in dataset.labels.sum(dim=0).tolist()]
    found = Counter(dataset.labels.tolist())
    return [found[index] for index in range(len(dataset.classes))]


def check(splits: Splits) -> Splits:
    """The same splits, if a model can learn from them: two classes or more, and each in every split."""
    train = splits.train
    if len(train.classes) < 2 and not train.multi_label:
        raise DataError(
            f"{train.name} has one class only, {train.classes[0]!r}; a classifier needs two or more: add a folder or "
            "label for what is not of that class"
        )
    for name, part in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
        if part is None:
            continue
        if len(part) == 0:
            raise DataError(f"{part.name} has no image in its {name} split; add some")
        # Without a positive, a label of many cannot be measured, but the others can.
        if part.multi_label and name != "train":
            continue
        empty = [label for label, count in zip(part.classes, counts(part), strict=True) if count == 0]
        if empty:
            raise DataError(_gap(name, part, empty, splits))
    return splits


def _gap(split: str, part: Dataset, empty: list[str], splits: Splits) -> str:
    shown = listed(map(repr, empty))
    noun = "class" if len(empty) == 1 else "classes"
    verb = "has" if len(empty) == 1 else "have"
    total = counts(splits.train)[part.classes.index(empty[0])]
    if split == "val" and total == 1:
        return (
            f"{noun} {shown} of {part.name} {verb} one image only, which cannot be both learned from and validated on; "
            "add images of it, or remove it"
        )
    same = next((names for names in alike(part.classes) if empty[0] in names), ())
    hint = f" (if {' and '.join(map(repr, same))} mean the same, give them one name)" if same else ""
    return f"{noun} {shown} of {part.name} {verb} no image in the {split} split; add some, or remove the {noun}{hint}"
