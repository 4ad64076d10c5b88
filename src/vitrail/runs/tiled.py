"""Boxes in large pictures: the model sees the picture in overlapping tiles at full resolution."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError, Unsupported
from vitrail.runs.predictor import Predictor, whole_pictures
from vitrail.tasks.answer import Answer
from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox
from vitrail.tasks.segment.windows import starts
from vitrail.tasks.task import finite_rows

_OVERLAP = 0.25  # the least share of a tile that the next one sees too


class NotFinite(CheckpointError):
    """The model computed NaN or infinity."""


class Tile(NamedTuple):
    """A part of a picture, and the part of it whose boxes it answers for: those with their centre there."""

    top: int
    left: int
    height: int
    width: int
    owned: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the picture

    def owns(self, box: FoundBox) -> bool:
        """Whether the centre of a box, in pixels of the picture, is in its own part."""
        x, y = (box.corners[0] + box.corners[2]) / 2, (box.corners[1] + box.corners[3]) / 2
        left, top, right, bottom = self.owned
        return left <= x < right and top <= y < bottom


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

    No box is found twice: each is that of the tile that its centre belongs to.
    """
    if tile < 1:
        raise ConfigError(f"tile is {tile}; it must be 1 or more pixels")
    boxes: list[FoundBox] = []
    tiles = cut((picture.shape[1], picture.shape[2]), tile)
    for first in range(0, len(tiles), batch_size):
        boxes += _found(model, picture, tiles[first : first + batch_size])
    return BoxesAnswer(tuple(sorted(boxes, key=lambda box: -box.score)), (picture.shape[1], picture.shape[2]))


def _found(model: Predictor, picture: Tensor, tiles: Sequence[Tile]) -> list[FoundBox]:
    cuts = [picture[:, one.top : one.top + one.height, one.left : one.left + one.width] for one in tiles]
    found: list[FoundBox] = []
    for one, answer in zip(tiles, _answers(model, cuts), strict=True):
        if not isinstance(answer, BoxesAnswer):
            raise Unsupported(f"tiles are for tasks that find boxes, not for {model.task.config.kind!r}")
        found += [box for box in answer.shifted(one.left, one.top).boxes if one.owns(box)]
    return found


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
