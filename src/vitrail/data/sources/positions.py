"""Which format of boxes, masks or depth maps a folder has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found
from vitrail.data.findings import Findings
from vitrail.data.sources.coco import find_coco, is_coco_file, read_coco
from vitrail.data.sources.depth import find_depth, read_depth_maps
from vitrail.data.sources.folder import Files, Scan, scan
from vitrail.data.sources.masks import find_masks, read_masks
from vitrail.data.sources.voc import looks_like_voc, read_voc
from vitrail.data.sources.yolo import find_yolo, is_yolo_file, read_yolo
from vitrail.data.targets import Target
from vitrail.errors import listed

Way = Callable[[], Found]  # reads what was recognised


def read_positions(root: Path, kinds: Sequence[str] = (), scanned: Scan | None = None) -> Found | None:
    """The boxes, masks or depth maps of a folder; None if it has none of the wanted kinds.

    Without `kinds` it is the first of these that there is, and a note tells of others; all that are named are read
    together, for tasks that learn from several.
    """
    chosen = [kind for kind in _KINDS if not kinds or kind in kinds]
    if not chosen:
        return None
    scanned = scanned or scan(root)
    if not scanned.images:
        return None
    ways = {kind: way for kind in chosen if (way := _KINDS[kind](root, scanned)) is not None}
    if not ways:
        return None
    if kinds:
        return join([way() for way in ways.values()])
    first, *others = ways
    found = ways[first]()
    if not others:
        return found
    note = (
        f"{root} also has files of {listed(others)}; --task {' or '.join(_TASKS[kind] for kind in others)} uses these."
    )
    return found._replace(notes=(*found.notes, note))


def missing(root: Path, kinds: Sequence[str], scanned: Scan) -> str | None:
    """Why a folder has nothing for those who learn from these kinds alone; None where they learn from others, too."""
    if not kinds or not set(kinds) <= _KINDS.keys():
        return None
    others = [kind for kind in _KINDS if kind not in kinds and _KINDS[kind](root, scanned) is not None]
    has = f"; it has {listed(_NAMES[kind] for kind in others)} (--task {_TASKS[others[0]]})" if others else ""
    expected = "; ".join(_EXPECTED[kind] for kind in kinds)
    return f"{root} has no {' and no '.join(_NAMES[kind] for kind in kinds)}{has}. Expected: {expected}"


def _boxes(root: Path, scanned: Scan) -> Way | None:
    if files := find_coco(root, scanned):
        return lambda: read_coco(root, files)
    if (about := find_yolo(root, scanned)) is not None:
        return lambda: read_yolo(root, about)
    return (lambda: read_voc(root, scanned)) if looks_like_voc(root, scanned) else None


def _masks(root: Path, scanned: Scan) -> Way | None:
    return (lambda: read_masks(root, scanned)) if find_masks(root, scanned) else None


def _depth(root: Path, scanned: Scan) -> Way | None:
    return (lambda: read_depth_maps(root, scanned)) if find_depth(root, scanned) else None


_KINDS: Mapping[str, Callable[[Path, Scan], Way | None]] = {"boxes": _boxes, "mask": _masks, "depth": _depth}
_TASKS = {"boxes": "detect", "mask": "segment", "depth": "depth"}
_NAMES = {"boxes": "boxes", "mask": "masks", "depth": "depth maps"}
_EXPECTED = {
    "boxes": "COCO JSON, YOLO's data.yaml with labels/, or Pascal VOC's Annotations/",
    "mask": "folders such as images/ and masks/ with the same names",
    "depth": "folders such as images/ and depth/ with the same names",
}


def join(found: Sequence[Found]) -> Found:
    """Several targets of the images of one folder; an image without one of them has it marked as unknown."""
    first, *others = found
    if not others:
        return first
    parts = [_joined([getattr(one, split) for one in found]) for split in ("train", "val", "test")]
    assert parts[0] is not None  # noqa: S101  (each has images to train on)
    findings = Findings(
        tuple(item for one in found for item in one.findings.items), sum(one.findings.total for one in found)
    )
    return Found(parts[0], parts[1], parts[2], tuple(note for one in found for note in one.notes), findings=findings)


def _joined(parts: Sequence[Dataset | None]) -> Files | None:
    """One split of several sources: the images of all of them."""
    given = [part for part in parts if isinstance(part, Files)]
    if not given:
        return None
    paths = list(dict.fromkeys(path for part in given for path in part.paths))
    targets: dict[str, Tensor] = {}
    schema: dict[str, Target] = {}
    for part in given:
        row = {path: at for at, path in enumerate(part.paths)}
        for name, target in part.schema.items():
            values = part.targets[name]
            rows = [values[row[path]] if path in row else target.unknown(values) for path in paths]
            targets[name], schema[name] = torch.stack(rows), target
    return Files(given[0].root, paths, targets, schema)


def read_positions_file(path: Path) -> Found | None:
    """The boxes that a COCO file or the YAML file of YOLO tells of; None for any other file."""
    if is_coco_file(path):
        return read_coco(path.parent, {"train": path})
    return read_yolo(path.parent, path) if is_yolo_file(path) else None
