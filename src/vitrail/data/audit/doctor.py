"""The audit of a dataset before training: what is broken, duplicated, missing, uneven or suspicious, and its cost."""

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vitrail.data.audit.annotation_faults import fault_sections
from vitrail.data.audit.duplicates import Print, exact_groups, fingerprint, near_advice, near_pairs
from vitrail.data.augment.augmentation import AugmentConfig
from vitrail.data.broken import MAX_BROKEN, lost_from_split, too_many
from vitrail.data.dataset import Dataset, Splits
from vitrail.data.decode import inspect
from vitrail.data.feeds.pack_size import stored_bytes
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.opening import ANY, survey
from vitrail.data.sources.table import Wanted
from vitrail.errors import BrokenImage, listed
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value

_SHOWN = 20  # rows of the table of duplicates
FORWARDS = 3.0  # forward passes that a training step of an image takes, where that was not measured
_TIMED = 64  # images to measure the speed of decoding


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model needs in training; `memory` is that of the device; all in bytes."""

    model: str
    fixed: int  # weights, gradients and optimizer state
    per_image: int | None  # activations; None where they were not measured
    memory: int
    images_per_second: float | None = None
    batch_size: int | None = None  # of a run with nothing named, where that is known
    epochs: int | None = None  # of such a run; 0 for a head that is fitted to features at once


class Sample(NamedTuple):
    """What the audit keeps of one image."""

    split: str
    where: str
    number: int
    truth: str  # its targets as text
    broken: str | None
    kind: str  # such as "JPEG colour"
    width: int
    height: int
    prints: Print | None
    misfits: tuple[str, ...] = ()  # targets that do not fit the image


def fitting_batch(cost: Cost, *, reserve: float = 0.1) -> int:
    """The largest batch size, a power of two, that fits into memory with a share in reserve; 0 if none does."""
    free = cost.memory * (1.0 - reserve) - cost.fixed
    most = int(free // max(cost.per_image or 0, 1))
    return 1 << (most.bit_length() - 1) if most >= 1 else 0


def examine(
    source: Splits | str | Path,
    *,
    val: str | Path | float | None = None,
    seed: int = 0,
    wanted: Wanted = ANY,
    title: str | None = None,
    image_size: tuple[int, int] = (224, 224),
    cost: Cost | None = None,
    limit: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Audits every image of all splits, or `limit` of each; changes nothing. `title` names the data in the report."""
    splits = source if isinstance(source, Splits) else survey(source, val=val, seed=seed, wanted=wanted)
    parts = {"train": splits.train, "val": splits.val} | ({"test": splits.test} if splits.test is not None else {})
    work = [(split, part, index) for split, part in parts.items() for index in _chosen(len(part), limit)]
    speed = _speed(splits.train)
    samples: list[Sample] = []
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        for sample in pool.map(_look, work):
            samples.append(sample)
            if progress is not None:
                progress(len(samples), len(work))
    title = title or (splits.train.name if isinstance(source, Splits) else str(source))
    advice: list[str] = []
    sections: list[Section] = [
        _overview(title, parts, samples),
        _splits_table(parts, samples),
        *_targets(parts, limit, advice),
        *fault_sections(splits.findings, [(one.where, text) for one in samples for text in one.misfits], advice),
        *_broken_table(parts, samples, advice),
        *_duplicates(samples, advice),
        _sizes(samples, image_size, advice),
        _kinds(samples, advice),
        _costs(parts, speed, _packed(splits, samples, image_size), cost, advice),
    ]
    _suspicious(parts, samples, advice)
    if splits.empty:
        advice.append(f"Folders without images: {listed(map(repr, splits.empty), 5)}. Add images, or remove them.")
    if limit is not None and len(work) < sum(map(len, parts.values())):
        advice.append(f"Only {len(work):,} images were audited; leave out the limit to audit all.")
    sections.append(Text("Notes", "\n".join(splits.notes) or "None."))
    sections.append(Text("Advice", "\n".join(advice) or "No problems found."))
    return Report(f"Audit of {title}", tuple(sections))


def _chosen(total: int, limit: int | None) -> Iterable[int]:
    """All indices, or `limit` of them, evenly spaced."""
    if limit is None or limit >= total:
        return range(total)
    return [index * total // limit for index in range(limit)]


def _look(work: tuple[str, Dataset, int]) -> Sample:
    split, part, index = work
    where = part.where(index)
    try:
        image = part.read(index)
        data = part.encoded(index)
    except BrokenImage as error:
        return Sample(split, where, index, "", str(error), "", 0, 0, None)
    truth, misfits = _truth(part, index, (image.shape[1], image.shape[2]))
    if data is None:
        kind = "array " + ("grey" if len(image) == 1 else "colour")
    else:
        header = inspect(data, name=where)
        kind = f"{header.format} {header.kind}{', alpha' * header.alpha}{', 16 bits' * header.deep}"
    return Sample(split, where, index, truth, None, kind, image.shape[2], image.shape[1], fingerprint(image), misfits)


def _truth(part: Dataset, index: int, size: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    """The targets of an image of a height and width as text, and what is wrong with them."""
    texts, misfits = [], []
    for name, target in part.schema.items():
        try:
            value = target.load(part.targets[name][index])
        except BrokenImage as error:
            misfits.append(str(error))
            continue
        texts.append(target.text(value))
        misfits += [] if (problem := target.misfit(value, size)) is None else [problem]
    return "; ".join(texts), tuple(misfits)


def _speed(part: Dataset) -> float:
    """Images per second that one core reads and decodes, without broken ones."""
    start, done = time.perf_counter(), 0
    for index in _chosen(len(part), _TIMED):
        try:
            part.read(index)
            done += 1
        except BrokenImage:
            continue
    return done / max(time.perf_counter() - start, 1e-9)


def _overview(title: str, parts: dict[str, Dataset], samples: Sequence[Sample]) -> Facts:
    return Facts(
        "Data",
        {
            "source": title,
            "images": sum(map(len, parts.values())),
            "audited": len(samples),
            "targets": "; ".join(target.describe() for target in parts["train"].schema.values()) or "none",
            "unreadable": sum(sample.broken is not None for sample in samples),
        },
    )


def _splits_table(parts: dict[str, Dataset], samples: Sequence[Sample]) -> Table:
    broken = Counter(sample.split for sample in samples if sample.broken is not None)
    rows: list[dict[str, Value]] = [
        {"split": split, "images": len(part), "unreadable": broken[split]} for split, part in parts.items()
    ]
    return Table("Splits", {"split": "", "images": "", "unreadable": ""}, tuple(rows))


def _targets(parts: dict[str, Dataset], limit: int | None, advice: list[str]) -> list[Section]:
    """The audit of each target; of those that are read from files, only `limit` in each split."""
    sections: list[Section] = []
    for name, target in parts["train"].schema.items():
        most = None if target.dense is None else limit
        audit = target.audit(
            {split: part.targets[name][list(_chosen(len(part), most))] for split, part in parts.items()}
        )
        sections += audit.sections
        advice += audit.advice
    return sections


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
    """Advice on a split that unreadable images leave empty or without a class; only if all of it was audited."""
    seen = [sample for sample in samples if sample.split == split]
    if len(seen) < len(part):
        return []
    if all(sample.broken is not None for sample in seen):
        return [f"No image of {split} can be read: training would stop."]
    readable = [sample.number for sample in seen if sample.broken is None]
    sentences = []
    for field, target in part.schema.items():
        if names := target.lost(part.targets[field], part.targets[field][readable]):
            stops = "; training would stop" if split == "train" else ""
            sentence = lost_from_split(split, names)
            sentences.append(f"{sentence[0].upper()}{sentence[1:]}{stops}.")
    return sentences


def _duplicates(samples: Sequence[Sample], advice: list[str]) -> list[Section]:
    prints = [sample.prints for sample in samples]
    groups, near = exact_groups(prints), near_pairs(prints)
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    across = [pair for pair in pairs if samples[pair[0]].split != samples[pair[1]].split]
    conflicts = [pair for pair in pairs if samples[pair[0]].truth != samples[pair[1]].truth]
    near_across = [pair for pair in near if samples[pair[0]].split != samples[pair[1]].split]
    if across:
        advice.append(
            f"Identical images in two splits: {len(across):,}. Results would be too good; remove them from train."
        )
    if conflicts:
        advice.append(f"Identical images with different labels: {len(conflicts):,}. Correct the labels.")
    if len(pairs) > len(across):
        advice.append(f"Identical images within a split: {len(pairs) - len(across):,}. Keep one of each.")
    advice += near_advice(len(near) - len(near_across), len(near_across))
    facts = Facts(
        "Duplicates",
        {
            "identical, within a split": len(pairs) - len(across),
            "identical, across splits": len(across),
            "identical, different label": len(conflicts),
            "similar, within a split": len(near) - len(near_across),
            "similar, across splits": len(near_across),
        },
    )
    worst = [*dict.fromkeys([*conflicts, *across, *pairs]), *near_across, *dict.fromkeys(near)]
    if not worst:
        return [facts]
    identical, short = set(pairs), _shortener(samples)
    rows = [
        {
            "pixels": "identical" if (a, b) in identical else "similar",
            "label": "same" if samples[a].truth == samples[b].truth else "different",
            "splits": f"{samples[a].split}, {samples[b].split}",
            "image": short(samples[a].where),
            "duplicate": short(samples[b].where),
        }
        for a, b in list(dict.fromkeys(worst))[:_SHOWN]
    ]
    columns: dict[str, Unit] = dict.fromkeys(("pixels", "label", "splits", "image", "duplicate"), "")
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
            f"Images are small (median of the shorter side: {short:g} pixels) for an image size of "
            f"{image_size[0]} x {image_size[1]}: a smaller one costs less and loses nothing."
        )
    return Facts(
        "Sizes",
        {
            "width, min / median / max": f"{min(widths)} / {statistics.median(widths):g} / {max(widths)}",
            "height, min / median / max": f"{min(heights)} / {statistics.median(heights):g} / {max(heights)}",
            "ratio, min / median / max": f"{min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}",
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
        advice.append(f"Grey images among colour images: {grey:,} of {total:,}. All are read as colour.")
    if alpha := sum(count for kind, count in found.items() if "alpha" in kind):
        advice.append(f"Images with transparency, which is blended with white: {alpha:,}.")
    if deep := sum(count for kind, count in found.items() if "16 bits" in kind):
        advice.append(f"Images with 16 bits per channel, which are scaled to 8: {deep:,}.")
    return Table("Kinds", {"kind": "", "images": "", "share": "share"}, tuple(rows))


def _suspicious(parts: dict[str, Dataset], samples: Sequence[Sample], advice: list[str]) -> None:
    """Advice on classes that the image size or file type alone predicts: a model could learn that instead."""
    for field, target in parts["train"].schema.items():
        groups = {split: target.groups(part.targets[field]) for split, part in parts.items()}
        for what, of in (("size", lambda s: f"{s.width} x {s.height}"), ("file type", lambda s: s.kind)):
            by_group: dict[str, Counter[str]] = defaultdict(Counter)
            for sample in samples:
                if sample.broken is None and (group := groups[sample.split][sample.number]) is not None:
                    by_group[group][of(sample)] += 1
            advice += _given_away(what, by_group)


def _given_away(what: str, by_group: dict[str, Counter[str]]) -> Iterable[str]:
    for group, found in sorted(by_group.items()):
        alone = next(iter(found))
        elsewhere = sum(other[alone] for name, other in by_group.items() if name != group)
        others = sum(other.total() for name, other in by_group.items() if name != group)
        if len(found) == 1 and found.total() >= 5 and others >= 5 and elsewhere * 20 < others:
            yield (
                f"All {found.total():,} images of {group!r} have the same {what} ({alone}), rare in other classes: the "
                "model may learn that instead of the content."
            )


def _packed(splits: Splits, samples: Sequence[Sample], image_size: tuple[int, int]) -> int:
    """The bytes of the packed images as `train` stores them by default: with room for crops, grey if all are."""
    grey = all(" grey" in sample.kind for sample in samples if sample.broken is None)
    preprocess = Preprocess(image_size=image_size, channels=1 if grey else 3)
    return stored_bytes(splits, preprocess, cropped=AugmentConfig().crops)


def _costs(
    parts: dict[str, Dataset],
    speed: float,
    packed: int,
    cost: Cost | None,
    advice: list[str],
) -> Facts:
    total, train, cores = sum(map(len, parts.values())), len(parts["train"]), os.cpu_count() or 1
    needed = "memory for this batch size"
    values: dict[str, str | int | float] = {
        "decoding, images per second and core": round(speed) if speed >= 10 else round(speed, 2),
        f"decoding once, seconds on {cores} cores": round(total / max(speed * cores, 1e-9), 1),
        "packed images": packed,
    }
    if cost is not None:
        batch = fitting_batch(cost)
        fits = min(batch, 1 << max(train.bit_length() - 1, 0))
        used = fits if cost.batch_size is None else min(cost.batch_size, train)
        values["model"] = cost.model
        if cost.epochs != 0:
            values |= {} if cost.batch_size is None else {"batch size": used}
            if cost.per_image is not None:
                values |= {"largest batch size": fits, needed: cost.fixed + used * cost.per_image}
        if batch == 0:
            advice.append(f"{cost.model} does not fit into memory even with one image: use a smaller model.")
        values |= dict(_seconds(cost, train, len(parts["val"])))
    return Facts("Cost", values, {"packed images": "bytes", needed: "bytes"})


def _seconds(cost: Cost, train: int, val: int) -> Iterator[tuple[str, float]]:
    """How long training takes: an epoch, and the whole run where its epochs are known."""
    if not cost.images_per_second:
        return
    if cost.epochs == 0:
        yield "features and a linear head, seconds", round((train + val) / cost.images_per_second, 1)
        return
    yield "one epoch of training, seconds", round(train / cost.images_per_second, 1)
    if cost.epochs is not None:
        seconds = cost.epochs * (train + val / FORWARDS) / cost.images_per_second
        yield f"{cost.epochs} epochs with validation, seconds", round(seconds)


def _shortener(samples: Sequence[Sample]) -> Callable[[str], str]:
    """A function that removes the common folder of all samples, to keep tables narrow."""
    shared = os.path.commonprefix([sample.where for sample in samples])  # noqa: RUF071  (cut at a slash below)
    folder = shared[: shared.rfind("/") + 1]
    return lambda where: where.removeprefix(folder)
