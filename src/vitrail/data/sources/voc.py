"""Pascal VOC: one XML file of boxes for each image, and lists of the images of each split."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vitrail.data.dataset import Found
from vitrail.data.sources.annotations import (
    Annotated,
    Collector,
    Corners,
    boxes_found,
    by_stem,
    nearest_path,
    picture_size,
)
from vitrail.data.sources.folder import SPLIT_NAMES, Scan, scan
from vitrail.data.sources.xml_tree import Element, read_xml
from vitrail.data.targets.boxes_target import Box
from vitrail.errors import DataError
from vitrail.files import read_text

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_LISTS = (Path("ImageSets", "Main"), Path("ImageSets"))
_ROOT = "annotation"
_UNUSED = "Images without annotations, not used"
_LIST_LIMIT = 64 << 20  # bytes


class _Record(NamedTuple):
    """An annotation file, its image, and what it says; paths are relative."""

    file: str
    image: str
    annotation: Element


def looks_like_voc(root: Path, scanned: Scan) -> bool:
    """Whether a folder has XML files of boxes."""
    files = _xml_files(scanned)
    if not files or not scanned.images:
        return False
    try:
        return read_xml(root / files[0]).name == _ROOT
    except DataError:
        return (root / "Annotations").is_dir()  # a damaged file among good ones is reported later


def read_voc(root: Path, scanned: Scan | None = None) -> Found:
    """The splits of a folder of images and XML files."""
    scanned, collector = scanned or scan(root), Collector()
    images = by_stem(scanned.images)
    files = _xml_files(scanned)
    records = list(_records(root, files, images, collector))
    first = _first_pixel(record.annotation for record in records)
    found = {record.file: Annotated(record.image, _boxes(root, record, first, collector)) for record in records}
    unused = {Path(file).stem for file in set(files) - found.keys()}
    for path in sorted(set(scanned.images) - {record.image for record in records}):
        if Path(path).parts[0] != "SegmentationClass":
            problem = "its annotation file cannot be used" if Path(path).stem in unused else "it has no annotation file"
            collector.add(root / path, "", _UNUSED, problem, serious=False)
    remark = f"Coordinates count pixels from {first}" + (", as in the original." if first else ", as some are 0.")
    parts = _splits(root, found, images, collector)
    name = f"Pascal VOC ({len(files):,} XML files with <{_ROOT}>)"
    return boxes_found(root, parts, collector, classes=None, format_name=name, remarks=[remark])


def _xml_files(scanned: Scan) -> list[str]:
    return [path for path in scanned.others if path.lower().endswith(".xml")]


def _records(
    root: Path, files: Iterable[str], images: Mapping[str, list[str]], collector: Collector
) -> Iterator[_Record]:
    """The annotation files that can be read and have an image."""
    for file in files:
        try:
            annotation = read_xml(root / file)
        except DataError as error:
            collector.total += 1
            reason = str(error).removeprefix(str(root / file)).lstrip(",: ")
            collector.add(root / file, "", "Annotation files that cannot be read, left out", reason)
            continue
        if annotation.name != _ROOT:
            continue
        name = annotation.word("filename")
        candidates = images.get(Path(name).stem) or images.get(Path(file).stem) or []
        if (image := nearest_path(candidates, file)) is not None:
            yield _Record(file, image, annotation)
        else:
            collector.total += 1
            problem = f"its image {name or Path(file).stem!r} does not exist"
            collector.add(root / file, "", "Annotations without an image, left out", problem)


def _first_pixel(annotations: Iterable[Element]) -> int:
    """1 as in the original, where xmin and ymin count pixels from 1; 0 if any of them is 0."""
    words = (
        thing.word("bndbox", side)
        for annotation in annotations
        for thing in annotation.children
        if thing.name == "object"
        for side in _SIDES[:2]
    )
    return 0 if any(_number(word) == 0 for word in words) else 1


def _boxes(root: Path, record: _Record, first: int, collector: Collector) -> list[Box]:
    file, annotation, given = root / record.file, record.annotation, []
    width, height = (_number(annotation.word("size", side)) or 0.0 for side in ("width", "height"))
    size = (width, height) if min(width, height) > 0 else picture_size(root / record.image)
    for thing in annotation.children:
        if thing.name != "object":
            continue
        where, label = f"line {thing.line}", thing.word("name")
        numbers = [_number(thing.word("bndbox", side)) for side in _SIDES]
        if not label or None in numbers:
            collector.total += 1
            what = "has no name" if not label else "has no complete bndbox of numbers"
            collector.add(file, where, "Objects without a name or a box, left out", f"the object {label!r} {what}")
            continue
        x1, y1, x2, y2 = (number or 0.0 for number in numbers)
        corners: Corners = (x1 - first, y1 - first, x2, y2)
        given.append((where, corners, Box(corners, label, ignore=thing.word("difficult") == "1")))
    return collector.boxes(given, size, file)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _splits(
    root: Path, found: Mapping[str, Annotated], images: Mapping[str, list[str]], collector: Collector
) -> dict[str, list[Annotated]]:
    """The images of each split: by the lists in ImageSets, by folders called train, val and test, or all to train."""
    lists = next((root / folder for folder in _LISTS if any((root / folder).glob("*.txt"))), None)
    names = {path.stem: path for path in lists.glob("*.txt")} if lists is not None else {}
    if "train" not in names and "trainval" in names:
        names["train"] = names["trainval"]
    parts: dict[str, list[Annotated]] = {}
    if "train" not in names:
        for file, image in found.items():
            parts.setdefault(SPLIT_NAMES.get(Path(file).parts[0].lower(), "train"), []).append(image)
        return parts
    stems = {Path(file).stem: image for file, image in found.items()}
    for split in ("train", "val", "test"):
        if split in names:
            parts[split] = list(_listed(names[split], stems, images, collector))
    return parts


def _listed(
    path: Path, found: Mapping[str, Annotated], images: Mapping[str, list[str]], collector: Collector
) -> Iterator[Annotated]:
    """The images that a list names."""
    try:
        lines = read_text(path, _LIST_LIMIT).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    for number, line in enumerate(lines, start=1):
        stem = (line.split() or [""])[0]
        if stem in found:
            yield found[stem]
        elif stem and stem not in images:
            collector.total += 1
            collector.add(path, f"line {number}", "Listed images that do not exist, left out", f"{stem!r} has no image")
