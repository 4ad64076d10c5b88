"""Boxes in large pictures: the model sees the picture in overlapping tiles at full resolution."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError, Unsupported
from vitrail.layers.boxes import iou
from vitrail.runs.predictor import Predictor, whole_pictures
from vitrail.tasks.answer import Answer
from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox
from vitrail.tasks.segment.windows import starts
from vitrail.tasks.task import finite_rows

_OVERLAP = 0.25  # the least share of a tile that the next one sees too
_MARGIN = 0.05  # of a tile: how far beyond its own part the centre of a box may be, as two tiles place it differently
_SAME = 0.5  # IoU of two boxes of a class, found in different tiles, that are one


class NotFinite(CheckpointError):
    """The model computed NaN or infinity."""


class Tile(NamedTuple):
    """A part of a picture, and the part of it whose boxes it answers for: those with their centre there."""

    top: int
    left: int
    height: int
    width: int
    owned: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the picture

    def owns(self, box: FoundBox, margin: float = 0.0) -> bool:
        """Whether the centre of a box, in pixels of the picture, is in its own part, or so close to it."""
        x, y = (box.corners[0] + box.corners[2]) / 2, (box.corners[1] + box.corners[3]) / 2
        left, top, right, bottom = self.owned
        return left - margin <= x < right + margin and top - margin <= y < bottom + margin


def cut(size: tuple[int, int], tile: int) -> list[Tile]:
    """The tiles of a picture of this height and width; their own parts cover it once."""
    rows, columns = (_spans(length, tile) for length in size)
    return [
        Tile(top, left, tall, wide, (first_x, first_y, last_x, last_y))
        for (top, tall, first_y, last_y), (left, wide, first_x, last_x) in product(rows, columns)
    ]


def _spans(length: int, tile: int) -> list[tuple[int, int, float, float]]:
    """First pixel, number of pixels, and the ends of the own part, of each tile along a side."""
    each = min(tile, length)
    found = starts(length, each, _OVERLAP)
    between = [(first + each + second) / 2 for first, second in pairwise(found)]
    ends = [-torch.inf, *between, torch.inf]
    return [(start, each, ends[index], ends[index + 1]) for index, start in enumerate(found)]


def find_in_tiles(model: Predictor, picture: Tensor, tile: int, *, batch_size: int = 32) -> BoxesAnswer:
    """The boxes of a picture, uint8 C H W, in its pixels; Unsupported where answers are not boxes.

    No box is found twice: each is that of the tile that its centre belongs to. Where two tiles find one whose centre is
    about on the line between them, the better of both is kept.
    """
    if tile < 1:
        raise ConfigError(f"tile is {tile}; it must be 1 or more pixels")
    found: list[tuple[Tile, FoundBox]] = []
    tiles = cut((picture.shape[1], picture.shape[2]), tile)
    for first in range(0, len(tiles), batch_size):
        found += _found(model, picture, tiles[first : first + batch_size], margin=_MARGIN * tile)
    return BoxesAnswer(tuple(_once(found)), (picture.shape[1], picture.shape[2]))


def _found(model: Predictor, picture: Tensor, tiles: Sequence[Tile], *, margin: float) -> list[tuple[Tile, FoundBox]]:
    cuts = [picture[:, one.top : one.top + one.height, one.left : one.left + one.width] for one in tiles]
    found: list[tuple[Tile, FoundBox]] = []
    for one, answer in zip(tiles, _answers(model, cuts), strict=True):
        if not isinstance(answer, BoxesAnswer):
            raise Unsupported(f"tiles are for tasks that find boxes, not for {model.task.config.kind!r}")
        found += [(one, box) for box in answer.shifted(one.left, one.top).boxes if one.owns(box, margin)]
    return found


def _once(found: Sequence[tuple[Tile, FoundBox]]) -> list[FoundBox]:
    """The boxes, best first, without those that another tile found better; a tile keeps all of its own."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: -one[1].score)
    better = _found_twice(ordered)
    kept = [True] * len(ordered)
    for at in sorted(better):
        kept[at] = not any(kept[other] for other in better[at])
    return [box for (_, box), keep in zip(ordered, kept, strict=True) if keep]


def _found_twice(ordered: Sequence[tuple[Tile, FoundBox]]) -> dict[int, list[int]]:
    """For boxes in order of their score: the number of each -> those of better ones, of other tiles, that are the same.

    Only boxes of tiles whose boxes touch are compared: the work grows with the number of boxes, not with its square.
    """
    corners = torch.tensor([box.corners for _, box in ordered])
    names = {name: number for number, name in enumerate(dict.fromkeys(box.label for _, box in ordered))}
    labels = torch.tensor([names[box.label] for _, box in ordered])
    of_tile: dict[Tile, list[int]] = {}
    for at, (tile, _) in enumerate(ordered):
        of_tile.setdefault(tile, []).append(at)
    own = [torch.tensor(numbers) for numbers in of_tile.values()]
    around = torch.stack([torch.cat([corners[one, :2].amin(0), corners[one, 2:].amax(0)]) for one in own])  # of a tile
    found: dict[int, list[int]] = {}
    for index, every in enumerate(own):
        near = _touching(around[index + 1 :], around[index]).nonzero()[:, 0].tolist()
        others = torch.cat([every[:0], *(own[index + 1 + one] for one in near)])
        here = every[_near(corners[every], corners[others])]
        there = others[_near(corners[others], corners[every])]
        same = (iou(corners[here, None], corners[there]) > _SAME) & (labels[here, None] == labels[there])
        for row, column in same.nonzero().tolist():
            pair = int(here[row]), int(there[column])
            found.setdefault(max(pair), []).append(min(pair))
    return found


def _near(boxes: Tensor, others: Tensor) -> Tensor:
    """Which of the boxes N 4 touch the smallest box around others M 4: N."""
    if not len(others):
        return torch.zeros(len(boxes), dtype=torch.bool)
    return _touching(boxes, torch.cat([others[:, :2].amin(0), others[:, 2:].amax(0)]))


def _touching(boxes: Tensor, other: Tensor) -> Tensor:
    """Which of the boxes N 4 share a point with another one: N."""
    return ((boxes[:, :2] <= other[2:]) & (boxes[:, 2:] >= other[:2])).all(dim=1)


def _answers(model: Predictor, pictures: Sequence[Tensor]) -> list[Answer]:
    """The answers to some pictures, uint8 C H W, in their pixels."""
    if (reader := whole_pictures(model)) is not None:
        every = reader.outputs(pictures)
        _check(every)
        return [model.task.decode(outputs)[0] for outputs in every]
    fitted, maps = zip(*(model.preprocess.fit(picture[None]) for picture in pictures), strict=True)
    outputs = model.outputs(torch.cat(fitted))
    _check([outputs])
    sizes = [(picture.shape[1], picture.shape[2]) for picture in pictures]
    found = zip(model.task.decode(outputs), maps, sizes, strict=True)
    return [answer.placed(place[0], size) for answer, place, size in found]


def _check(every: Sequence[Mapping[str, Tensor]]) -> None:
    if not all(all(finite_rows(outputs)) for outputs in every):
        raise NotFinite("the model computed numbers that are not finite; its weights are damaged or too large")
