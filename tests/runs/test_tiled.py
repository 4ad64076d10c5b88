"""Tiles: every point belongs to one tile; boxes are found once, in pixels of the picture."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.boxes import iou
from vitrail.runs import tiled
from vitrail.runs.tiled import Tile, cut, find_in_tiles
from vitrail.tasks.detect.detect_answer import BoxesAnswer, FoundBox
from vitrail.tasks.regress.regression import NumbersAnswer


def box(x: float, y: float) -> FoundBox:
    return FoundBox("dot", 0, 0.9, (x - 1, y - 1, x + 1, y + 1))


@dataclass
class Dots:
    """A model that finds bright pixels, one box for each."""

    preprocess: Preprocess = field(default_factory=lambda: Preprocess(image_size=(32, 32), resize="squash"))
    answers_with: type = BoxesAnswer

    @property
    def task(self) -> "Dots":
        return self

    @property
    def config(self) -> "Dots":
        return self

    kind = "dots"

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        assert images.shape[1:] == (3, 32, 32)
        return {"images": images}

    def decode(self, outputs: dict[str, Tensor]) -> list[object]:
        if self.answers_with is not BoxesAnswer:
            return [NumbersAnswer((), ()) for _ in outputs["images"]]
        return [
            BoxesAnswer(tuple(box(x + 0.5, y + 0.5) for y, x in (image[0] > 200).nonzero().tolist()))
            for image in outputs["images"]
        ]


@pytest.mark.parametrize("size", [(32, 32), (50, 90), (20, 100), (97, 33)])
def test_every_point_belongs_to_one_tile(size: tuple[int, int]) -> None:
    tiles = cut(size, 32)
    for y in range(0, size[0], 7):
        for x in range(0, size[1], 7):
            owners = [one for one in tiles if one.owns(box(x + 0.5, y + 0.5))]
            assert len(owners) == 1
            (owner,) = owners
            assert owner.left <= x < owner.left + owner.width
            assert owner.top <= y < owner.top + owner.height


def test_boxes_are_found_once_and_in_place() -> None:
    picture = torch.zeros(3, 80, 100, dtype=torch.uint8)
    points = [(3, 4), (40, 50), (79, 99), (28, 31)]
    for y, x in points:
        picture[:, y, x] = 255
    found = find_in_tiles(Dots(), picture, 32, batch_size=3)
    centres = sorted(
        ((one.corners[1] + one.corners[3]) / 2, (one.corners[0] + one.corners[2]) / 2) for one in found.boxes
    )
    assert len(centres) == len(points)
    for (y, x), (row, column) in zip(sorted(points), centres, strict=True):
        assert abs(y + 0.5 - row) < 1
        assert abs(x + 0.5 - column) < 1


class Shaky(Dots):
    """Places a box a little differently in each tile: towards the middle of the tile or away from it."""

    towards = 0.0

    def decode(self, outputs: dict[str, Tensor]) -> list[object]:
        answers = super().decode(outputs)
        return [BoxesAnswer(tuple(self.moved(one) for one in answer.boxes)) for answer in answers]  # type: ignore[attr-defined]

    def moved(self, found: FoundBox) -> FoundBox:
        x = (found.corners[0] + found.corners[2]) / 2
        x += self.towards if x < 16 else -self.towards
        y = (found.corners[1] + found.corners[3]) / 2
        return FoundBox("dot", 0, 0.9, (x - 5, y - 5, x + 5, y + 5))


@pytest.mark.parametrize("towards", [-1.2, 1.2])
def test_a_box_on_the_line_between_two_tiles_is_found_once(towards: float) -> None:
    line = cut((32, 56), 32)[0].owned[2]
    picture = torch.zeros(3, 32, 56, dtype=torch.uint8)
    picture[:, 16, int(line)] = 255
    model = Shaky()
    model.towards = towards
    (found,) = find_in_tiles(model, picture, 32).boxes
    assert abs((found.corners[0] + found.corners[2]) / 2 - line) < 2


def scattered(side: int, each: int) -> list[tuple[Tile, FoundBox]]:
    """Boxes of many sizes that the tiles of a picture found in their own parts, or near them."""
    chance, found = np.random.default_rng(0), []
    for tile in cut((side, side), 64):
        for x, y in chance.uniform((tile.left, tile.top), (tile.left + tile.width, tile.top + tile.height), (each, 2)):
            half, label, score = chance.choice([2.0, 8.0, 30.0]), str(chance.choice(["a", "b"])), float(chance.random())
            one = FoundBox(label, 0, score, (x - half, y - half, x + half, y + half))
            found += [(tile, one)] if tile.owns(one, 4.0) else []
    return found


def test_the_better_of_two_tiles_is_kept_as_if_all_boxes_were_compared() -> None:
    found, kept = scattered(200, 60), list[tuple[Tile, FoundBox]]()
    for tile, one in sorted(found, key=lambda each: -each[1].score):
        others = [other for place, other in kept if place is not tile and other.label == one.label]
        same = [float(iou(torch.tensor(other.corners), torch.tensor(one.corners))) > 0.5 for other in others]
        kept += [] if any(same) else [(tile, one)]
    assert len(kept) < len(found)
    assert tiled._once(found) == [one for _, one in kept]


def test_the_comparisons_grow_with_the_picture_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(first: Tensor, second: Tensor) -> Tensor:
        found = iou(first, second)
        compared.append(found.numel())
        return found

    monkeypatch.setattr(tiled, "iou", counted)
    counts = []
    for side in (400, 800):
        compared.clear()
        tiled._once(scattered(side, 10))
        counts.append(sum(compared))
    assert 0 < counts[1] < 6 * counts[0]  # four times as many boxes


def test_boxes_of_one_tile_may_overlap() -> None:
    picture = torch.zeros(3, 32, 56, dtype=torch.uint8)
    picture[:, 16, 5] = picture[:, 16, 6] = 255
    assert len(find_in_tiles(Shaky(), picture, 32).boxes) == 2


def test_what_cannot_be_tiled() -> None:
    picture = torch.zeros(3, 40, 40, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="tile"):
        find_in_tiles(Dots(), picture, 0)
    with pytest.raises(Unsupported, match="boxes"):
        find_in_tiles(Dots(answers_with=NumbersAnswer), picture, 32)
