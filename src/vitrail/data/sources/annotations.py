"""Boxes from annotation files: collected image by image, checked, and made into datasets."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.data.dataset import Found
from vitrail.data.decode import inspect
from vitrail.data.findings import Finding, Findings
from vitrail.data.sources.folder import Files
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.errors import BrokenImage, DataError
from vitrail.files import read_bytes

Corners = tuple[float, float, float, float]
Size = tuple[float, float]  # width, height
SPLITS = ("train", "val", "test")
_LARGEST = 1e7  # pixels; more is not a picture
_SLACK = 1.0  # pixels by which a box may reach over the edge, as rounding does


class Annotated(NamedTuple):
    """An image and its boxes; its path is relative to the source's folder."""

    path: str
    boxes: Sequence[Box]


class Collector:
    """Checks boxes and keeps what is wrong with them; `total` counts all that were given."""

    def __init__(self) -> None:
        self.items: list[Finding] = []
        self.total = 0

    @property
    def findings(self) -> Findings:
        """All that was found."""
        return Findings(tuple(self.items), self.total)

    def add(self, file: str | Path, where: str, kind: str, problem: str, *, serious: bool = True) -> None:
        """Notes a fault."""
        self.items.append(Finding(str(file), where, kind, problem, serious))

    def boxes(self, given: Iterable[tuple[str, Corners, Box]], size: Size | None, file: str | Path) -> list[Box]:
        """The boxes of one image that can be used, cut off at its edges: where, corners, and the rest of each.

        Without a size (width, height), nothing is known of the edges.
        """
        kept: dict[tuple[Corners, str], Box] = {}
        for where, corners, box in given:
            self.total += 1
            if (fitted := self._fitted(corners, size, file, where)) is None:
                continue
            if (fitted, box.label) in kept:
                shown = " ".join(f"{value:g}" for value in corners)
                problem = f"the box {shown} of {box.label!r} is there twice"
                self.add(file, where, "Duplicate boxes, of which one is kept", problem, serious=False)
                continue
            kept[fitted, box.label] = box._replace(corners=fitted)
        return list(kept.values())

    def _fitted(self, corners: Corners, size: Size | None, file: str | Path, where: str) -> Corners | None:
        """The corners inside of the picture; None if the box cannot be used."""
        x1, y1, x2, y2 = corners
        shown = f"the box {x1:g} {y1:g} {x2:g} {y2:g}"
        if not all(math.isfinite(value) and abs(value) < _LARGEST for value in corners):
            self.add(file, where, "Boxes with impossible numbers, left out", f"{shown} has impossible numbers")
            return None
        if x2 <= x1 or y2 <= y1:
            self.add(file, where, "Boxes without area, left out", f"{shown} (x1 y1 x2 y2) has no area")
            return None
        if size is None:
            return corners
        width, height = size
        inside = max(x1, 0.0), max(y1, 0.0), min(x2, width), min(y2, height)
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            problem = f"{shown} is outside of the picture of {width:g} x {height:g}"
            self.add(file, where, "Boxes outside of the picture, left out", problem)
            return None
        if max(-x1, -y1, x2 - width, y2 - height) > _SLACK:
            problem = f"{shown} reaches outside of the picture of {width:g} x {height:g}"
            self.add(file, where, "Boxes partly outside of the picture, cut off", problem, serious=False)
        return inside


def boxes_found(
    root: Path,
    parts: Mapping[str, Sequence[Annotated]],
    collector: Collector,
    *,
    classes: Sequence[str] | None,
    format_name: str,
    remarks: Sequence[str] = (),
) -> Found:
    """The splits of a source of boxes, all with one schema; the first note says what was recognised."""
    every = [image for split in SPLITS for image in parts.get(split, ())]
    if not every:
        refused = f"; {collector.items[0]}" if collector.items else ""
        raise DataError(f"{root} looks like {format_name}, but has no image with annotations{refused}")
    if not parts.get("train"):
        raise DataError(f"{root} ({format_name}) has no images to train on in its lists; check the names of its splits")
    target, values = BoxesTarget.of([image.boxes for image in every], classes)
    datasets, start = {}, 0
    for split in SPLITS:
        if images := parts.get(split):
            own = values[start : start + len(images)]
            start += len(images)
            datasets[split] = Files(root, [image.path for image in images], {"boxes": own}, {"boxes": target})
    count = sum(len(image.boxes) for image in every)
    noun = "class" if len(target.classes) == 1 else "classes"
    sizes = ", ".join(f"{split} {len(part):,}" for split, part in datasets.items())
    summary = (
        f"{root} is {format_name}; detection: {len(target.classes)} {noun}, {count:,} boxes in {len(every):,} images"
        f"{f' ({sizes})' if len(datasets) > 1 else ''}."
    )
    findings = collector.findings
    notes = (summary, *remarks, *findings.notes())
    return Found(datasets["train"], datasets.get("val"), datasets.get("test"), notes, findings=findings)


def picture_size(path: Path) -> Size | None:
    """Width and height from the header of an image; None for one that cannot be read."""
    try:
        header = inspect(read_bytes(path), name=str(path))
    except (OSError, BrokenImage):
        return None
    return float(header.width), float(header.height)


def relative(path: Path, root: Path) -> str:
    """A path below a folder, or an absolute one elsewhere."""
    try:
        return str(path.relative_to(root))
    except ValueError:
        return os.path.abspath(path)  # noqa: PTH100  (links are kept)


def by_stem(paths: Iterable[str]) -> dict[str, list[str]]:
    """Paths by the name of the file without its suffix."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(Path(path).stem, []).append(path)
    return found


def nearest_path(candidates: Sequence[str], file: str) -> str | None:
    """The candidate that shares most folders with a file; None without candidates."""
    folders = Path(file).parts[:-1]

    def shared(path: str) -> int:
        pairs = zip(Path(path).parts[:-1], folders, strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), len(folders))

    return max(candidates, key=shared, default=None)
