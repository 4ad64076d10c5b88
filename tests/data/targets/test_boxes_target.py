"""Boxes: moved, cut off and pasted as the pixels are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vitrail.data.augment.resample import Boxes, crop
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import BoxesTarget, Column
from vitrail.data.targets.boxes_target import AREA, BOX, CLASS, IGNORE, MIN_VISIBLE, Box
from vitrail.errors import DataError

few = settings(max_examples=40, deadline=None, derandomize=True)
IDENTITY = torch.eye(3)[None, :2]


def painted(size, box):
    """A white rectangle on black, uint8 3 H W."""
    image = torch.zeros(3, *size, dtype=torch.uint8)
    x1, y1, x2, y2 = box
    image[:, y1:y2, x1:x2] = 255
    return image


def bright(image):
    """x1 y1 x2 y2 of what is brighter than half, to a fraction of a pixel: C H W, 0 to 255."""
    columns, rows = image[0].float().amax(0) / 255, image[0].float().amax(1) / 255
    return torch.tensor([*ends(columns), *ends(rows)])[[0, 2, 1, 3]]


def ends(line):
    """Where a line of levels from 0 to 1 passes one half, between centres of pixels."""
    over = (line > 0.5).nonzero()[:, 0]
    first, last = int(over[0]), int(over[-1])
    low = 0.0 if first == 0 else first + 0.5 - float((line[first] - 0.5) / (line[first] - line[first - 1]))
    top = len(line) - 1
    high = len(line) if last == top else last + 0.5 + float((line[last] - 0.5) / (line[last] - line[last + 1]))
    return low, high


def target_of(box, label="cell"):
    return BoxesTarget.of([[Box(tuple(map(float, box)), label)]])


boxes = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(12, 40), st.integers(12, 40))


@few
@given(
    source=st.tuples(st.integers(60, 110), st.integers(60, 110)),
    size=st.tuples(st.integers(48, 90), st.integers(48, 90)),
    box=boxes,
    resize=st.sampled_from(["window", "crop", "squash", "pad"]),
)
def test_a_drawn_box_lands_where_its_pixels_land_when_fitted(source, size, box, resize):
    left, top, wide, tall = box
    drawn = left, top, min(left + wide, source[1]), min(top + tall, source[0])
    fit = Preprocess(image_size=size, resize=resize, mean=(0.0,))
    image, maps = fit.fit(painted(source, drawn)[None])
    target, values = target_of(drawn)
    moved = target.move(values, maps, size)[0, 0]
    assume(moved[CLASS] == 0)
    assume((moved[2:4] - moved[:2]).min() > 6)
    assert (bright(image[0]) - moved[BOX]).abs().max() < 0.5


@few
@given(
    part=st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(40, 60), st.integers(40, 60)),
    box=boxes,
    flip=st.booleans(),
)
def test_a_drawn_box_lands_where_its_pixels_land_when_cropped_and_flipped(part, box, flip):
    source, size = (96, 96), (64, 64)
    drawn = box[0], box[1], box[0] + box[2], box[1] + box[3]
    cut = Boxes(*(torch.tensor([float(one)]) for one in part), fits=torch.tensor([True]))
    mirrored = torch.tensor([flip])
    image = crop(painted(source, drawn)[None], cut, size, flip=mirrored).clamp(0, 255)
    target, values = target_of(drawn)
    moved = target.move(values, cut.maps(size, flip=mirrored), size)[0, 0]
    assume(moved[CLASS] == 0)
    assume((moved[2:4] - moved[:2]).min() > 6)
    assert (bright(image[0]) - moved[BOX]).abs().max() < 0.5


@pytest.mark.parametrize(("right", "kept"), [(8.1, False), (7.4, True)])
def test_a_box_is_cut_off_at_the_edge_and_left_out_below_a_visible_share(right, kept):
    target, values = target_of((0, 0, 10, 10))
    shift = torch.tensor([[[1.0, 0.0, right], [0.0, 1.0, 0.0]]])
    moved = target.move(values, shift, (20, 20))[0, 0]
    assert (10 - right) / 10 < MIN_VISIBLE or kept
    assert bool(target.valid(moved[None])[0]) is kept
    if kept:
        torch.testing.assert_close(moved[BOX], torch.tensor([0.0, 0.0, 10 - right, 10.0]))
        assert moved[AREA] == 100  # of the original
    else:
        assert moved.tolist() == [0, 0, 0, 0, -1, 0, 0]


def test_a_box_to_ignore_stays_as_long_as_any_part_is_visible():
    target, values = BoxesTarget.of([[Box((0, 0, 10, 10), "cell", ignore=True)]])
    shift = torch.tensor([[[1.0, 0.0, 9.5], [0.0, 1.0, 0.0]]])
    moved = target.move(values, shift, (20, 20))
    assert moved[0, 0, CLASS] == 0
    assert moved[0, 0, IGNORE] == 1
    assert not target.valid(moved).any()


def test_a_turned_box_is_the_hull_of_its_corners():
    target, values = target_of((10, 10, 20, 14))
    quarter = torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 32.0]]])  # new (x, y) shows old (y, 32 - x)
    moved = target.move(values, quarter, (32, 32))[0, 0]
    assert moved[BOX].tolist() == [18, 10, 22, 20]


def test_images_without_boxes_and_images_that_were_not_annotated():
    target, values = BoxesTarget.of([[Box((0, 0, 4, 4), "a"), Box((1, 1, 2, 2), "b")], [], None])
    assert target.known(values).tolist() == [True, True, False]
    assert [target.text(value) for value in values] == ["1 a, 1 b", "no boxes", "not annotated"]
    moved = target.move(values, IDENTITY.expand(3, 2, 3), (8, 8))
    assert torch.equal(moved, values)
    wide = target.align(values, replace(target, most=5), name="data")
    assert wide.shape == (3, 5, 7)
    assert target.known(wide).tolist() == [True, True, False]
    assert not target.valid(wide)[:, 2:].any()


def test_splits_share_room_for_the_most_boxes():
    one, other = BoxesTarget(classes=("a",), most=3), BoxesTarget(classes=("a",), most=7)
    assert one.joined(other).most == other.joined(one).most == 7


def test_strata_are_the_rarest_classes():
    rows = [[Box((0, 0, 4, 4), "many")]] * 5 + [[Box((0, 0, 4, 4), "many"), Box((0, 0, 2, 2), "rare")]] + [[]]
    target, values = BoxesTarget.of(rows)
    assert target.strata(values) == [0] * 5 + [1, 2]


def test_pasted_boxes_shrink_to_what_is_visible():
    target, own = target_of((2, 2, 12, 12))
    _, other = target_of((8, 0, 20, 20))
    region = torch.zeros(1, 20, 20, dtype=torch.bool)
    region[:, :, 10:] = True
    pasted = target.paste(own, other, region)
    assert pasted.shape == (1, 2, 7)
    assert pasted[0, :, BOX].tolist() == [[2, 2, 10, 12], [10, 0, 20, 20]]
    hidden = target.paste(own, other, torch.ones_like(region))
    assert target.valid(hidden)[0].tolist() == [False, True]


def test_boxes_are_drawn_in_the_colour_of_their_class():
    target, values = BoxesTarget.of([[Box((5, 5, 35, 25), "a"), Box((1, 1, 6, 6), "b", ignore=True)]])
    image = torch.zeros(3, 40, 50, dtype=torch.uint8)
    drawn = target.draw(image, values[0])
    assert drawn[:, 24, 20].max() > 100  # the lower edge
    assert drawn[:, 1, 3].tolist() == [150, 150, 150]
    assert not drawn[:, 30:].any()
    assert target.draw(image[:1], values[0]).shape == (1, 40, 50)


def test_the_audit_counts_boxes_and_sizes():
    target, values = BoxesTarget.of([[Box((0, 0, 10, 10), "a"), Box((0, 0, 200, 200), "b")], []])
    audit = target.audit({"train": values, "val": values[:1]})
    boxes = next(section for section in audit.sections if section.title == "Boxes")
    assert boxes.rows[0] == {
        "split": "train", "boxes": 2, "to ignore": 0, "images without": 1, "most in an image": 2, "small": 1,
        "large": 1,
    }  # fmt: skip


def test_a_class_that_training_does_not_know_is_named():
    target, values = target_of((0, 0, 4, 4), "cell")
    with pytest.raises(DataError, match="cell"):
        target.align(values, BoxesTarget(classes=("other",)), name="data")


def test_names_of_several_words_and_cells_without_boxes():
    column = Column(Path("t.csv"), "boxes", ["1 2 3 4 red blood cell ;", " "], [2, 3])
    target, values, _ = BoxesTarget.read([column])
    assert target.classes == ("red blood cell",)
    assert target.valid(values).tolist() == [[True], [False]]
