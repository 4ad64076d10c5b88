"""The audit of data before training: what is broken, doubled, missing, uneven or suspicious, and what it will cost."""

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vitrail.data.augment import AugmentConfig
from vitrail.data.broken import MAX_BROKEN, lost, lost_from_split, too_many
from vitrail.data.dataset import Dataset, Splits
from vitrail.data.decode import inspect
from vitrail.data.duplicates import Print, exact_groups, fingerprint, near_pairs
from vitrail.data.names import told_alike
from vitrail.data.source import survey
from vitrail.data.split import counts
from vitrail.data.stored import stored_bytes
from vitrail.errors import BrokenImage, listed
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value

_SHOWN = 20  # rows of a table of findings
_TIMED = 64  # images that the speed of decoding is measured on
_FEW, _UNEVEN = 10, 10  # images of a class; largest class over smallest


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model needs in training; `memory` is that of the device, all in bytes."""

    model: str
    fixed: int  # weights, gradients and the optimiser's state
    per_image: int  # activations
    memory: int
    images_per_second: float | None = None


class Sample(NamedTuple):
    """What was seen of one image."""

    split: str
    where: str
    labels: tuple[int, ...]
    broken: str | None
    kind: str  # for instance "JPEG colour"
    width: int
    height: int
    prints: Print | None


def fitting_batch(cost: Cost, *, reserve: float = 0.1) -> int:
    """The largest power of two whose images fit into the memory beside the model, some of it left free; 0 for none."""
    free = cost.memory * (1.0 - reserve) - cost.fixed
    most = int(free // max(cost.per_image, 1))
    return 1 << (most.bit_length() - 1) if most >= 1 else 0


def examine(
    source: Splits | str | Path,
    *,
    val: str | Path | float | None = None,
    seed: int = 0,
    image_size: tuple[int, int] = (224, 224),
    cost: Cost | None = None,
    limit: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Looks at every image of all splits, or at `limit` of each, and reports; nothing is changed."""
    splits = source if isinstance(source, Splits) else survey(source, val=val, seed=seed)
    parts = {"train": splits.train, "val": splits.val} | ({"test": splits.test} if splits.test is not None else {})
    work = [(split, part, index) for split, part in parts.items() for index in _chosen(len(part), limit)]
    speed = _speed(splits.train)
    samples: list[Sample] = []
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        for sample in pool.map(_look, work):
            samples.append(sample)
            if progress is not None:
                progress(len(samples), len(work))
    advice: list[str] = []
    sections: list[Section] = [
        _overview(splits, parts, samples),
        _splits_table(parts, samples, advice),
        _classes_table(parts, advice),
        *_broken_table(parts, samples, advice),
        *_duplicates(samples, advice),
        _sizes(samples, image_size, advice),
        _kinds(samples, advice),
        _costs(parts, speed, _packed(splits, samples, image_size), cost, advice),
    ]
    _suspicious(samples, splits.train.classes, advice)
    advice += told_alike(splits.train.classes)
    if splits.empty:
        advice.append(f"Folders without an image: {listed(map(repr, splits.empty), 5)}. Add images, or remove them.")
    if limit is not None and len(work) < sum(map(len, parts.values())):
        advice.append(f"Only {len(work):,} images were looked at; leave out the limit to see all.")
    sections.append(Text("Notes", "\n".join(splits.notes) or "None."))
    sections.append(Text("Advice", "\n".join(advice) or "Nothing stands in the way of training."))
    return Report(f"Audit of {splits.train.name}", tuple(sections))


def _chosen(total: int, limit: int | None) -> Iterable[int]:
    """All numbers, or so many spread evenly."""
    if limit is None or limit >= total:
        return range(total)
    return [index * total // limit for index in range(limit)]


def _look(work: tuple[str, Dataset, int]) -> Sample:
    split, part, index = work
    label = part.labels[index]
    labels = tuple(label.nonzero()[:, 0].tolist()) if part.multi_label else (int(label),)
    where = part.where(index)
    try:
        image = part.read(index)
        data = part.encoded(index)
    except BrokenImage as error:
        return Sample(split, where, labels, str(error), "", 0, 0, None)
    if data is None:
        kind = "array " + ("grey" if len(image) == 1 else "colour")
    else:
        header = inspect(data, name=where)
        kind = f"{header.format} {header.kind}{', alpha' * header.alpha}{', 16 bits' * header.deep}"
    return Sample(split, where, labels, None, kind, image.shape[2], image.shape[1], fingerprint(image))


def _speed(part: Dataset) -> float:
    """Images a second that one core reads and decodes; broken ones count for nothing."""
    start, done = time.perf_counter(), 0
    for index in _chosen(len(part), _TIMED):
        try:
            part.read(index)
            done += 1
        except BrokenImage:
            continue
    return done / max(time.perf_counter() - start, 1e-9)


def _overview(splits: Splits, parts: dict[str, Dataset], samples: Sequence[Sample]) -> Facts:
    train = splits.train
    return Facts(
        "Data",
        {
            "source": train.name,
            "images": sum(map(len, parts.values())),
            "looked at": len(samples),
            "classes": len(train.classes),
            "labels": "several an image" if train.multi_label else "one an image",
            "unreadable": sum(sample.broken is not None for sample in samples),
        },
    )


def _splits_table(parts: dict[str, Dataset], samples: Sequence[Sample], advice: list[str]) -> Table:
    broken = Counter(sample.split for sample in samples if sample.broken is not None)
    rows: list[dict[str, Value]] = []
    for split, part in parts.items():
        missing = [name for name, count in zip(part.classes, counts(part), strict=True) if count == 0]
        present = len(part.classes) - len(missing)
        rows.append({"split": split, "images": len(part), "unreadable": broken[split], "classes": present})
        if missing:
            shown = listed(map(repr, missing), 5)
            advice.append(f"No image in {split} has the class {shown}: add some, or remove the class.")
    if len(parts["train"].classes) < 2 and not parts["train"].multi_label:
        advice.append("There is one class only; a classifier needs two or more.")
    return Table("Splits", {"split": "", "images": "", "unreadable": "", "classes": ""}, tuple(rows))


def _classes_table(parts: dict[str, Dataset], advice: list[str]) -> Table:
    numbers = {split: counts(part) for split, part in parts.items()}
    classes, train = parts["train"].classes, numbers["train"]
    rows: list[dict[str, Value]] = [
        {"class": name, **{split: numbers[split][index] for split in parts}, "share": train[index] / max(sum(train), 1)}
        for index, name in enumerate(classes)
    ]
    present = [count for count in train if count]
    if present and max(present) > _UNEVEN * min(present):
        advice.append(
            f"Classes are uneven: {classes[train.index(max(present))]!r} has {max(present):,} training images, "
            f"{classes[train.index(min(present))]!r} {min(present):,}; add images of the rare ones, and judge by the "
            "accuracy of each class."
        )
    few = [name for name, count in zip(classes, train, strict=True) if 0 < count < _FEW]
    if few:
        shown = listed(map(repr, few), 5)
        advice.append(f"Fewer than {_FEW} training images: {shown}; expect little of these classes.")
    return Table("Classes", {"class": "", **dict.fromkeys(parts, ""), "share": "share"}, tuple(rows))


def _broken_table(parts: dict[str, Dataset], samples: Sequence[Sample], advice: list[str]) -> list[Section]:
    broken = [(sample.where, sample.broken) for sample in samples if sample.broken is not None]
    if not broken:
        return []
    if too_many(len(broken), len(samples)):
        advice.append(
            f"{len(broken):,} of {len(samples):,} images cannot be read, more than {100 * MAX_BROKEN:g} %: training "
            "would stop. Repair or remove them."
        )
    else:
        advice.append(f"Unreadable images, which training skips: {len(broken):,}. Repair or remove them.")
        advice += [sentence for split, part in parts.items() for sentence in _lost(split, part, samples)]
    short = _shortener(samples)
    rows = [{"file": short(where), "reason": reason.removeprefix(f"{where} ")} for where, reason in broken]
    return [Table("Unreadable", {"file": "", "reason": ""}, tuple(rows))]


def _lost(split: str, part: Dataset, samples: Sequence[Sample]) -> list[str]:
    """What is said of a split that unreadable images leave empty or without a class, where all of it was seen."""
    seen = [sample for sample in samples if sample.split == split]
    if len(seen) < len(part):
        return []
    if all(sample.broken is not None for sample in seen):
        return [f"No image of {split} can be read: training would stop."]
    left = Counter(label for sample in seen if sample.broken is None for label in sample.labels)
    names = lost(part.classes, counts(part), [left[index] for index in range(len(part.classes))])
    stops = "; training would stop" if split == "train" else ""
    sentence = lost_from_split(split, names)
    return [f"{sentence[0].upper()}{sentence[1:]}{stops}."] if names else []


def _duplicates(samples: Sequence[Sample], advice: list[str]) -> list[Section]:
    prints = [sample.prints for sample in samples]
    groups, near = exact_groups(prints), near_pairs(prints)
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    across = [pair for pair in pairs if samples[pair[0]].split != samples[pair[1]].split]
    conflicts = [pair for pair in pairs if samples[pair[0]].labels != samples[pair[1]].labels]
    near_across = [pair for pair in near if samples[pair[0]].split != samples[pair[1]].split]
    if across:
        advice.append(
            f"Images that occur in two splits, pixel by pixel: {len(across):,}. Results would be too good; remove them "
            "from train."
        )
    if conflicts:
        advice.append(f"Equal images with different labels: {len(conflicts):,}. Decide which label is right.")
    if len(pairs) > len(across):
        advice.append(f"Images that occur again in their split: {len(pairs) - len(across):,}. One of each would do.")
    if near_across:
        advice.append(
            f"Pairs of images in two splits that look alike: {len(near_across):,}. See whether they are copies."
        )
    facts = Facts(
        "Duplicates",
        {
            "equal, within a split": len(pairs) - len(across),
            "equal, across splits": len(across),
            "equal, other label": len(conflicts),
            "alike, within a split": len(near) - len(near_across),
            "alike, across splits": len(near_across),
        },
    )
    worst = [*dict.fromkeys([*conflicts, *across, *pairs]), *near_across, *dict.fromkeys(near)]
    if not worst:
        return [facts]
    equal, short = set(pairs), _shortener(samples)
    rows = [
        {
            "pixels": "equal" if (a, b) in equal else "alike",
            "label": "same" if samples[a].labels == samples[b].labels else "other",
            "splits": f"{samples[a].split}, {samples[b].split}",
            "image": short(samples[a].where),
            "again": short(samples[b].where),
        }
        for a, b in list(dict.fromkeys(worst))[:_SHOWN]
    ]
    columns: dict[str, Unit] = dict.fromkeys(("pixels", "label", "splits", "image", "again"), "")
    return [facts, Table(f"Duplicates, the first {len(rows)}", columns, tuple(rows))]


def _sizes(samples: Sequence[Sample], image_size: tuple[int, int], advice: list[str]) -> Facts:
    seen = [sample for sample in samples if sample.broken is None]
    if not seen:
        return Facts("Sizes", {"images": 0})
    widths, heights = [sample.width for sample in seen], [sample.height for sample in seen]
    ratios = [sample.width / sample.height for sample in seen]
    short = statistics.median(min(sample.width, sample.height) for sample in seen)
    if 2 * short < min(image_size):
        advice.append(
            f"Images are small (the shorter side has {short:g} pixels in the middle) against the model's "
            f"{image_size[0]} x {image_size[1]}: a smaller image size costs less and sees the same."
        )
    return Facts(
        "Sizes",
        {
            "width, least / middle / most": f"{min(widths)} / {statistics.median(widths):g} / {max(widths)}",
            "height, least / middle / most": f"{min(heights)} / {statistics.median(heights):g} / {max(heights)}",
            "width over height": f"{min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}",
            "different sizes": len(set(zip(widths, heights, strict=True))),
        },
    )


def _kinds(samples: Sequence[Sample], advice: list[str]) -> Table:
    found = Counter(sample.kind for sample in samples if sample.broken is None)
    total = sum(found.values())
    rows: list[dict[str, Value]] = [
        {"kind": kind, "images": count, "share": count / total} for kind, count in found.most_common()
    ]
    grey = sum(count for kind, count in found.items() if " grey" in kind)
    if 0 < grey < total:
        advice.append(f"Grey images among colour ones: {grey:,} of {total:,}. Together they are read as colour.")
    if alpha := sum(count for kind, count in found.items() if "alpha" in kind):
        advice.append(f"Images with transparency, which is laid over white: {alpha:,}.")
    if deep := sum(count for kind, count in found.items() if "16 bits" in kind):
        advice.append(f"Images of 16 bits a channel, which are scaled to 8: {deep:,}.")
    return Table("Kinds", {"kind": "", "images": "", "share": "share"}, tuple(rows))


def _suspicious(samples: Sequence[Sample], classes: Sequence[str], advice: list[str]) -> None:
    """A class that size or kind alone gives away: a model would learn that instead of the picture."""
    for what, of in (("size", lambda s: f"{s.width} x {s.height}"), ("kind of file", lambda s: s.kind)):
        by_class: dict[int, Counter[str]] = defaultdict(Counter)
        for sample in samples:
            if sample.broken is None and len(sample.labels) == 1:
                by_class[sample.labels[0]][of(sample)] += 1
        for label, found in sorted(by_class.items()):
            alone = next(iter(found))
            elsewhere = sum(other[alone] for number, other in by_class.items() if number != label)
            others = sum(other.total() for number, other in by_class.items() if number != label)
            if len(found) == 1 and found.total() >= 5 and others >= 5 and elsewhere * 20 < others:
                advice.append(
                    f"All {found.total():,} images of {classes[label]!r} have one {what} ({alone}) that others hardly "
                    "have: the model may learn that instead of what is in the picture."
                )


def _packed(splits: Splits, samples: Sequence[Sample], image_size: tuple[int, int]) -> int:
    """The bytes that the images take as `train` packs them by itself: with room for crops, grey where all are."""
    grey = all(" grey" in sample.kind for sample in samples if sample.broken is None)
    cropped = AugmentConfig().crop == "resized"
    return stored_bytes(splits, image_size, channels=1 if grey else 3, cropped=cropped)


def _costs(
    parts: dict[str, Dataset],
    speed: float,
    packed: int,
    cost: Cost | None,
    advice: list[str],
) -> Facts:
    total, train, cores = sum(map(len, parts.values())), len(parts["train"]), os.cpu_count() or 1
    taken = "memory that this takes"
    values: dict[str, str | int | float] = {
        "decoding, images a second and core": round(speed) if speed >= 10 else round(speed, 2),
        f"decoding once, seconds on {cores} cores": round(total / max(speed * cores, 1e-9), 1),
        "packed images": packed,
    }
    if cost is not None:
        batch = fitting_batch(cost)
        fits = min(batch, 1 << max(train.bit_length() - 1, 0))
        values |= {"model": cost.model, "batch size that fits": fits, taken: cost.fixed + fits * cost.per_image}
        if batch == 0:
            advice.append(f"{cost.model} does not fit into the memory even with one image: take a smaller model.")
        if cost.images_per_second:
            values["one epoch of training, seconds"] = round(train / cost.images_per_second, 1)
    return Facts("Cost", values, {"packed images": "bytes", taken: "bytes"})


def _shortener(samples: Sequence[Sample]) -> Callable[[str], str]:
    """What cuts off the folder that all samples lie in: a table has little room."""
    shared = os.path.commonprefix([sample.where for sample in samples])  # noqa: RUF071  (cut at a slash below)
    folder = shared[: shared.rfind("/") + 1]
    return lambda where: where.removeprefix(folder)
