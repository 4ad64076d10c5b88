"""YOLO: a text file of relative boxes for each image, and a YAML file with the classes and splits."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.dataset import Found
from vitrail.data.decode import SUFFIXES
from vitrail.data.natural import natural
from vitrail.data.sources.annotations import Annotated, Collector, Corners, boxes_found, picture_size, relative
from vitrail.data.sources.folder import SPLIT_NAMES, Scan, scan
from vitrail.data.targets.boxes_target import Box
from vitrail.data.targets.mask_target import in_threads
from vitrail.errors import DataError
from vitrail.files import is_file, read_text
from vitrail.strict_yaml import from_yaml

_NAMES = ("classes.txt", "obj.names", "labels/classes.txt")
_LIMIT = 16 << 20  # bytes of a text file
_VALUES = 1_000_000  # of a YAML file
_KEYS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


class _Yolo(NamedTuple):
    """Where the classes and the images of each split were found."""

    about: Path  # the file that says so
    classes: tuple[str, ...]
    images: Mapping[str, Sequence[Path]]


def find_yolo(root: Path, scanned: Scan) -> Path | None:
    """The YAML file with names and splits, or the list of classes beside images/ and labels/; None if neither."""
    files = sorted(file for file in root.glob("*.y*ml") if file.suffix.lower() in (".yaml", ".yml"))
    for file in sorted(files, key=lambda file: file.stem != "data"):
        if is_yolo_file(file):
            return file
    labels = [path for path in scanned.others if Path(path).suffix == ".txt" and "labels" in Path(path).parts[:-1]]
    names = [root / name for name in _NAMES if (root / name).is_file()]
    if len(labels) < 2 or not any("images" in Path(path).parts[:-1] for path in scanned.images):
        return None
    if not names:
        raise DataError(
            f"{root} has images/ and labels/ with text files as YOLO has, but no data.yaml and no classes.txt with the "
            "names of its classes; add one"
        )
    return names[0]


def is_yolo_file(path: Path) -> bool:
    """Whether a YAML file names classes and training images."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        data = from_yaml(read_text(path, _LIMIT), most=_VALUES)
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "names" in data and "train" in data


def read_yolo(root: Path, about: Path) -> Found:
    """The splits of images with label files; sizes of images are read from their headers."""
    found = _from_yaml(about) if about.suffix.lower() in (".yaml", ".yml") else _from_names(root, about)
    collector = Collector()
    every = [path for paths in found.images.values() for path in paths]
    sizes = dict(zip(every, in_threads(picture_size, every), strict=True))
    parts = {
        split: list(_annotated(root, paths, found.classes, sizes, collector)) for split, paths in found.images.items()
    }
    _lost_labels(found, collector)
    return boxes_found(root, parts, collector, classes=found.classes, format_name=f"YOLO ({about.name})")


def _from_yaml(about: Path) -> _Yolo:
    data = from_yaml(read_text(about, _LIMIT), most=_VALUES)
    names = data["names"]
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            raise DataError(f"{about}: names must be numbered from 0 without gaps, not {list(names)[:5]}")
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
        raise DataError(f"{about}: names must be a list of different class names")
    if isinstance(data.get("nc"), int) and data["nc"] != len(names):
        raise DataError(f"{about}: nc is {data['nc']}, but there are {len(names)} names")
    base = about.parent / str(data.get("path") or "")
    base = base if _is_folder(base) else about.parent
    images: dict[str, list[Path]] = {}
    for key, split in _KEYS.items():
        if data.get(key):
            images[split] = list(_images(about, base, data[key]))
    return _Yolo(about, tuple(map(str, names)), images)


def _images(about: Path, base: Path, given: Any) -> Iterator[Path]:
    """The images of a folder, of a list in a text file, or of several of these."""
    for one in given if isinstance(given, list) else [given]:
        # Some tools write paths that start one folder too high.
        tried = [base / str(one), about.parent / str(one), about.parent / str(one).removeprefix("../")]
        path = next((path for path in tried if is_file(path) or _is_folder(path)), None)
        if path is None:
            name = str(one)[:200]
            raise DataError(f"{about} names {name}, which does not exist; expected a folder or a list of images")
        if path.is_dir():
            yield from (path / image for image in scan(path).images)
            continue
        try:
            lines = read_text(path, _LIMIT).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as a list of images: {error}") from error
        yield from (path.parent / line.strip() for line in lines if line.strip())


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no folder can have
        return False


def _from_names(root: Path, names: Path) -> _Yolo:
    """Images in images/ and labels in labels/, each with folders of splits or without."""
    classes = tuple(line.strip() for line in read_text(names, _LIMIT).splitlines() if line.strip())
    images: dict[str, list[Path]] = {}
    for path in scan(root).images:
        parts = Path(path).parts
        if "images" in parts[:-1]:
            split = next((SPLIT_NAMES[part.lower()] for part in parts[:-1] if part.lower() in SPLIT_NAMES), "train")
            images.setdefault(split, []).append(root / path)
    return _Yolo(names, classes, images)


def label_file(image: Path) -> Path:
    """The text file of an image: in labels/ instead of the last images/, or beside it."""
    parts = list(image.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            parts[at] = "labels"
            return Path(*parts).with_suffix(".txt")
    return image.with_suffix(".txt")


def _annotated(
    root: Path,
    paths: Sequence[Path],
    classes: Sequence[str],
    sizes: Mapping[Path, tuple[float, float] | None],
    collector: Collector,
) -> Iterator[Annotated]:
    for path in paths:
        file, size = label_file(path), sizes[path]
        lines: list[str] = []
        if is_file(file):
            try:
                lines = read_text(file, _LIMIT).splitlines()
            except (OSError, UnicodeDecodeError) as error:
                collector.total += 1
                collector.add(file, "", "Annotation files that cannot be read, left out", str(error))
                continue
        if not any(line.strip() for line in lines):
            kind = "Images without annotations, used as empty ones"
            collector.add(path, "", kind, f"there is no box in {file}", serious=False)
        given = _parsed(file, lines, classes, size or (1.0, 1.0), collector)
        yield Annotated(relative(path, root), [] if size is None else collector.boxes(given, size, file))


def _parsed(
    file: Path, lines: Sequence[str], classes: Sequence[str], size: tuple[float, float], collector: Collector
) -> list[tuple[str, Corners, Box]]:
    """The boxes of a label file in pixels: class, centre x y, width, height; or class and the points of an outline."""
    given = []
    for number, line in enumerate(lines, start=1):
        if not (words := line.split()):
            continue
        where, problem = f"line {number}", None
        try:
            label, numbers = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            label, numbers = -1, []
        if len(numbers) == 4:
            x, y, wide, tall = numbers
            relative_corners = (x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2)
        elif len(numbers) >= 6 and len(numbers) % 2 == 0:
            xs, ys = numbers[::2], numbers[1::2]
            relative_corners = (min(xs), min(ys), max(xs), max(ys))
        else:
            problem = ("Lines that cannot be read, left out", f"{line.strip()[:60]!r} is not: class x y width height")
        if problem is None and not 0 <= label < len(classes):
            known = f"there are {len(classes)} classes, 0 to {len(classes) - 1}"
            problem = ("Unknown categories, left out", f"the class is {label}; {known}")
        if problem is not None:
            collector.total += 1
            collector.add(file, where, *problem)
            continue
        corners = tuple(value * size[at % 2] for at, value in enumerate(relative_corners))
        given.append((where, corners, Box(corners, classes[label])))  # type: ignore[arg-type]
    return given  # type: ignore[return-value]


def _lost_labels(found: _Yolo, collector: Collector) -> None:
    """Notes label files without an image."""
    known = {label_file(path) for paths in found.images.values() for path in paths}
    for folder in sorted({file.parent for file in known}, key=natural_path):
        if not _is_folder(folder):
            continue
        images = {Path(name).stem for name in os.listdir(folder) if Path(name).suffix.lower() in SUFFIXES}  # noqa: PTH208
        for file in sorted(folder.glob("*.txt")):
            if file not in known and file.name not in _NAMES and file.stem not in images:
                collector.total += 1
                collector.add(file, "", "Annotations without an image, left out", "it has no image")


def natural_path(path: Path) -> Any:
    """The order of folders."""
    return natural(str(path))
