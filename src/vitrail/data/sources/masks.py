"""Images with a mask each: PNG files of class numbers, with or without a palette."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitrail.data.dataset import Found
from vitrail.data.sources.annotations import Collector
from vitrail.data.sources.folder import Files, Scan
from vitrail.data.sources.paired import Names, Pair, find_pairs, image_size
from vitrail.data.targets.mask_target import (
    IGNORE,
    NAME_FILES,
    VOID,
    MaskFacts,
    MaskTarget,
    fitting_names,
    in_threads,
    look_at_masks,
    mask_classes,
)
from vitrail.data.targets.pixel_files import references
from vitrail.errors import DataError, listed

MASKS = Names(
    what="mask",
    folders=("masks", "mask", "labels", "annotations", "segmentation", "segmentations", "gt", "segmentationclass"),
    endings=("_mask", "-mask", "_masks", "_seg", "_gt", "_label", "_L"),
    suffixes=(".png", ".bmp", ".tif", ".tiff", ".gif"),
    folder_ending="annot",
    lists="ImageSets/Segmentation",
)
_MOST = 0.75  # of the masks
_CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist", "void",
)  # fmt: skip


def find_masks(root: Path, scanned: Scan) -> bool:
    """Whether a folder has a mask for most images."""
    return find_pairs(root, scanned, MASKS) is not None


def read_masks(root: Path, scanned: Scan) -> Found:
    """The splits of a folder of images and masks; every mask is read once to learn its values."""
    collector = Collector()
    pairs = find_pairs(root, scanned, MASKS, collector)
    if pairs is None:
        raise DataError(f"{root} has no masks; expected folders such as images/ and masks/ with the same names")
    every = [pair for part in pairs.splits.values() for pair in part]
    facts = dict(zip(every, look_at_masks([root / pair.other for pair in every]), strict=True))
    sizes = dict(zip(every, in_threads(image_size, [root / pair.image for pair in every]), strict=True))
    names, remarks = _class_names(root, facts)
    classes, table = mask_classes({value for one in facts.values() for value in one.values}, names)
    parts = {
        split: [pair for pair in part if _usable(root, pair, facts[pair], sizes[pair], names, collector)]
        for split, part in pairs.splits.items()
    }
    if not all(parts.values()):
        raise DataError(f"a split of {root} has no usable mask; {listed(map(str, collector.items), 3)}")
    target = MaskTarget(classes=classes)
    datasets = {
        split: Files(
            root,
            [pair.image for pair in part],
            {"mask": references([root / pair.other for pair in part], [table] * len(part))},
            {"mask": target},
        )
        for split, part in parts.items()
    }
    findings = collector.findings
    counts = ", ".join(f"{split} {len(part):,}" for split, part in parts.items())
    summary = (
        f"{root} has {pairs.reason}; segmentation: {len(classes)} class{'es' * (len(classes) != 1)}, {counts} images."
    )
    notes = (summary, *remarks, *findings.notes())
    return Found(datasets["train"], datasets.get("val"), datasets.get("test"), notes, findings=findings)


def _class_names(root: Path, facts: Mapping[Pair, MaskFacts]) -> tuple[Sequence[str] | None, tuple[str, ...]]:
    """The names of the values 0, 1, ... if they are known, and notes on where they come from."""
    values = {value for one in facts.values() for value in one.values}
    folders = [root, *((root / pair.other).parent for pair in facts)]
    lines, file, unfit = fitting_names(folders, [one.values for one in facts.values()])
    if lines is not None and file is not None:
        ignored = [line for line in lines if line.lower() in VOID]
        skipped = f"; {listed(ignored)} is ignored" if ignored else ""
        return lines, (*unfit, f"Class names are from {file.relative_to(root)}{skipped}.")
    names, remark = _usual_names(root, facts, values)
    return names, (*unfit, remark)


def _usual_names(root: Path, facts: Mapping[Pair, MaskFacts], values: set[int]) -> tuple[Sequence[str] | None, str]:
    """The names where no file has them, and a note on them."""
    if _is_camvid(facts):
        return _CAMVID, "These are the folders and the 12 values of CamVid: its class names are used, 11 is ignored."
    if values == {0, IGNORE}:
        return None, "Masks have the values 0 and 255 only: background and foreground."
    hint = f"a file {NAME_FILES[0]} can name them, one a line"
    return None, f"Classes are numbered by value, {IGNORE} is ignored; {hint}.{_gaps(root, facts)}"


def _is_camvid(facts: Mapping[Pair, MaskFacts]) -> bool:
    """Whether folders are called as in CamVid, and most masks have no value but 0 to 11."""
    values = [one.values for one in facts.values() if one.values]
    usual = [one for one in values if max(one) < len(_CAMVID)]
    return (
        any("annot" in Path(pair.other).parts[0] for pair in facts)
        and len(usual) > len(values) * _MOST
        and len(_CAMVID) - 1 in set().union(*usual)
    )


def _gaps(root: Path, facts: Mapping[Pair, MaskFacts]) -> str:
    """A sentence on values that may be mistakes, where most of the values up to the largest occur in no mask."""
    found = Counter(value for one in facts.values() for value in one.values if value != IGNORE)
    largest = max(found, default=0)
    if not found or len(found) * 2 > largest + 1:
        return ""
    first = next(pair.other for pair, one in facts.items() if largest in one.values)
    masks = f"{found[largest]:,} masks, such as {root / first}" if found[largest] > 1 else f"{root / first} alone"
    return (
        f" Of the values 0 to {largest} only {len(found)} occur; {largest} is in {masks}. If that is a mistake, "
        f"correct it, or list the classes in {NAME_FILES[0]}: values beyond the last one are ignored."
    )


def _usable(  # noqa: PLR0917  (all of one mask)
    root: Path,
    pair: Pair,
    facts: MaskFacts,
    size: tuple[int, int] | None,
    names: Sequence[str] | None,
    collector: Collector,
) -> bool:
    """Whether a mask can be used; notes what is wrong with it."""
    collector.total += 1
    path = root / pair.other
    if facts.error:
        reason = facts.error.removeprefix(str(path)).strip()
        collector.add(path, "", "Masks that cannot be read, left out", reason)
        return False
    if size is not None and size != facts.size:
        problem = f"it has {facts.size[1]} x {facts.size[0]} pixels, its image {size[1]} x {size[0]}"
        collector.add(path, "", "Masks of another size than the image, left out", problem)
        return False
    unknown = [value for value in facts.values if names is not None and len(names) <= value < IGNORE]
    if unknown:
        values = f"value{'s' * (len(unknown) > 1)} {listed(map(str, unknown), 5)}"
        problem = f"it has the {values}; {len(names or ())} classes have names"
        collector.add(path, "", "Masks with unknown values, which are ignored", problem)
    return True
