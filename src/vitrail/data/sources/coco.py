"""COCO: one JSON file of images, categories and boxes for each split."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.dataset import Found
from vitrail.data.sources.annotations import Annotated, Collector, Corners, boxes_found, picture_size, relative
from vitrail.data.sources.folder import SPLIT_NAMES, Scan
from vitrail.data.targets.boxes_target import Box
from vitrail.errors import DataError, listed
from vitrail.files import is_file, open_regular, read_text
from vitrail.strict_json import to_json

LIMIT = 1 << 30  # bytes of a file; the boxes of COCO's training images take 450 MB
_KEYS = ("images", "annotations", "categories")
_PEEK = 1 << 16  # bytes that tell COCO's files from others
_CHECKED = 20  # images, one of which must exist in a folder
_LARGEST = 10**12  # pixels; a larger number is a mistake


class _Split(NamedTuple):
    """One file: its images by id, its categories by id, and its annotations."""

    path: Path
    images: Mapping[Any, Mapping[str, Any]]
    categories: Mapping[Any, str]
    annotations: Sequence[Any]


def find_coco(root: Path, scanned: Scan) -> dict[str, Path]:
    """The files of boxes in a folder, by split; empty if there are none."""
    files = [path for path in scanned.others if path.lower().endswith(".json") and path.count(os.sep) <= 2]
    chosen = [path for path in files if Path(path).name.startswith("instances")] or files
    chosen = [path for path in chosen if _is_coco(root / path)]
    if len(chosen) == 1:
        return {"train": root / chosen[0]}
    found: dict[str, Path] = {}
    for path in chosen:
        if (split := _split_name(path)) is not None:
            if split in found:
                raise DataError(f"{root} has two COCO files for the split {split}: {found[split]} and {path}; keep one")
            found[split] = root / path
    return found if "train" in found else {}


def is_coco_file(path: Path) -> bool:
    """Whether a file is COCO's JSON."""
    return path.suffix.lower() == ".json" and _is_coco(path)


def _is_coco(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            head = file.read(_PEEK)
    except OSError:
        return False
    return head.lstrip()[:1] == b"{" and any(f'"{key}"'.encode() in head for key in _KEYS)


def _split_name(path: str) -> str | None:
    """The split in a name such as annotations/instances_val2017.json or valid/_annotations.coco.json."""
    words = re.split(r"[^a-z]+", path.lower())
    return next((SPLIT_NAMES[word] for word in reversed(words) if word in SPLIT_NAMES), None)


def read_coco(root: Path, files: Mapping[str, Path]) -> Found:
    """The splits of COCO files with their images in or near a folder."""
    collector, splits = Collector(), {split: _read(path) for split, path in files.items()}
    first = next(iter(splits.values()))
    for split in splits.values():
        if dict(split.categories) != dict(first.categories):
            raise DataError(f"{split.path} has other categories than {first.path}; all splits need the same")
    parts = {name: list(_annotated(root, split, collector)) for name, split in splits.items()}
    classes = list(first.categories.values())
    name = f"COCO JSON ({listed([relative(path, root) for path in files.values()], 3)})"
    return boxes_found(root, parts, collector, classes=classes, format_name=name)


def _read(path: Path) -> _Split:
    try:
        data = json.loads(read_text(path, LIMIT), parse_constant=_refuse_constant)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        at = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{at}: not valid JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in _KEYS):
        raise DataError(f"{path} is not a COCO file: it must have lists of {', '.join(_KEYS)}")
    categories = {one["id"]: str(one["name"]) for one in _entries(path, data, "categories", "name")}
    if len(set(categories.values())) < len(categories):
        raise DataError(f"{path} has two categories with the same name; rename one")
    images = {one["id"]: one for one in _entries(path, data, "images", "file_name")}
    return _Split(
        path, images, dict(sorted(categories.items(), key=lambda item: str(item[0]).zfill(9))), data[_KEYS[1]]
    )


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _entries(path: Path, data: Mapping[str, Any], key: str, field: str) -> Iterator[Mapping[str, Any]]:
    """The entries of a list, each of which must have an id and a text."""
    seen = set()
    for at, one in enumerate(data[key]):
        if not isinstance(one, dict) or not isinstance(one.get("id"), int | str) or not isinstance(one.get(field), str):
            raise DataError(f"{path}: {key}[{at}] has no id or no {field}")
        if one["id"] in seen:
            raise DataError(f"{path}: {key}[{at}] has the id {one['id']!r} of another; ids must be unique")
        seen.add(one["id"])
        yield one


def _annotated(root: Path, split: _Split, collector: Collector) -> Iterator[Annotated]:
    """The images of a split that exist, with their boxes."""
    folder = _image_folder(root, split)
    given = _grouped(split, collector)
    for key, image in split.images.items():
        path = folder / image["file_name"]
        boxes, where = given.get(key, []), f"image {key}"
        if not is_file(path):
            collector.total += 1
            problem = f"{image['file_name']} does not exist in {folder}; its {len(boxes):,} boxes are left out"
            collector.add(split.path, where, "Annotations without an image, left out", problem)
            continue
        if not boxes:
            problem = f"{image['file_name']} has no annotations"
            collector.add(split.path, where, "Images without annotations, used as empty ones", problem, serious=False)
        width, height = _positive(image.get("width")), _positive(image.get("height"))
        size = picture_size(path) if width is None or height is None else (width, height)
        yield Annotated(relative(path, root), collector.boxes(boxes, size, split.path))


def _grouped(split: _Split, collector: Collector) -> dict[Any, list[tuple[str, Corners, Box]]]:
    """The boxes of each image by its id."""
    given: dict[Any, list[tuple[str, Corners, Box]]] = defaultdict(list)
    for at, one in enumerate(split.annotations):
        entry = one if isinstance(one, dict) else {}
        where = f"annotation {entry.get('id', f'number {at}')}"
        problem = _problem(entry, split)
        if problem is not None:
            collector.total += 1
            collector.add(split.path, where, *problem)
            continue
        x, y, width, height = map(float, entry["bbox"])
        corners, area = (x, y, x + width, y + height), _positive(entry.get("area"))
        box = Box(corners, split.categories[entry["category_id"]], bool(entry.get("iscrowd")), area)
        given[entry["image_id"]].append((where, corners, box))
    return given


def _problem(entry: Mapping[str, Any], split: _Split) -> tuple[str, str] | None:
    """The kind of fault of an annotation and what is wrong; None if it can be read."""
    image, category, box = entry.get("image_id"), entry.get("category_id"), entry.get("bbox")
    if not isinstance(image, int | str) or image not in split.images:
        return "Annotations without an image, left out", f"there is no image with the id {image!r}"
    if not isinstance(category, int | str) or category not in split.categories:
        return "Unknown categories, left out", f"there is no category with the id {category!r}"
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return "Annotations without a box, left out", f"bbox is {to_json(box)[:60]}; expected [x, y, width, height]"
    return None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def _positive(value: Any) -> float | None:
    return float(value) if _is_number(value) and value > 0 else None


def _image_folder(root: Path, split: _Split) -> Path:
    """The folder that file names are relative to: near the file, or one called as the split."""
    name = split.path.stem.removeprefix("instances_")
    word = _split_name(split.path.name) or _split_name(str(split.path.parent.name)) or "train"
    near = [split.path.parent, root, split.path.parent.parent]
    tried = [base / sub for base in near for sub in ("", "images", name, f"images/{name}", word, f"images/{word}")]
    first = [one["file_name"] for one in list(split.images.values())[:_CHECKED]]
    for folder in tried:
        if any(is_file(folder / file) for file in first):
            return folder
    if not first:
        raise DataError(f"{split.path} lists no images")
    shown = ", ".join(dict.fromkeys(map(str, tried[:4])))
    raise DataError(f"{split.path}: its images, such as {first[0]}, were not found in {shown}; put them beside it")
