"""Images per class: what is uneven, rare or missing."""

from collections.abc import Mapping, Sequence

from vitrail.data.targets.class_balance import remedies, skew_of
from vitrail.data.targets.class_names import notes_on_similar, similar_names
from vitrail.data.targets.target import Audit
from vitrail.errors import listed
from vitrail.report import Table, Value

_FEW = 10  # images of a class
_UNEVEN_LABELS = 10  # the most frequent label over the rarest: some difference is usual


def lost_classes(classes: Sequence[str], before: Sequence[int], after: Sequence[int]) -> tuple[str, ...]:
    """The classes that had images before and have none after."""
    return tuple(name for name, had, has in zip(classes, before, after, strict=True) if had and not has)


def gap(classes: Sequence[str], split: str, name: str, empty: Sequence[str], *, in_train: Sequence[int]) -> str:
    """An error message about classes without an image in a split."""
    shown = listed(map(repr, empty))
    noun, verb = ("class", "has") if len(empty) == 1 else ("classes", "have")
    if split == "val" and in_train[list(classes).index(empty[0])] == 1:
        return (
            f"{noun} {shown} of {name} {verb} only one image, which cannot be in both training and validation; "
            "add images, or remove it"
        )
    same = next((names for names in similar_names(classes) if empty[0] in names), ())
    hint = f" (if {' and '.join(map(repr, same))} mean the same, use one name)" if same else ""
    return f"{noun} {shown} of {name} {verb} no image in the {split} split; add some, or remove the {noun}{hint}"


def audit_classes(classes: Sequence[str], counts: Mapping[str, Sequence[int]], *, one: bool) -> Audit:
    """A table of images per class and split, and advice; `one`: each image has exactly one class."""
    advice: list[str] = []
    for split, numbers in counts.items():
        if missing := [name for name, count in zip(classes, numbers, strict=True) if not count]:
            shown = listed(map(repr, missing), 5)
            advice.append(f"No image in {split} has the class {shown}: add some, or remove the class.")
    if one and len(classes) < 2:
        advice.append("There is only one class; a classifier needs at least two.")
    train = counts["train"]
    if (skew := skew_of(classes, train)) is not None and (one or skew.ratio > _UNEVEN_LABELS):
        advice.append(
            f"Classes are uneven: {skew.frequent!r} has {skew.most:,} training images, {skew.rare!r} {skew.least:,}. "
            f"Look at the recall of each class, and add images of the rare ones, or try a remedy. {remedies()}."
        )
    if few := [name for name, count in zip(classes, train, strict=True) if 0 < count < _FEW]:
        advice.append(
            f"Fewer than {_FEW} training images: {listed(map(repr, few), 5)}; expect low accuracy for these classes."
        )
    total = max(sum(train), 1)
    rows: list[dict[str, Value]] = [
        {"class": name, **{split: numbers[index] for split, numbers in counts.items()}, "share": train[index] / total}
        for index, name in enumerate(classes)
    ]
    table = Table("Classes", {"class": "", **dict.fromkeys(counts, ""), "share": "share"}, tuple(rows))
    return Audit((table,), [*advice, *notes_on_similar(classes)])
