"""Mosaic and copy-paste: boxes, masks and depth are where the pixels are."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment.augmentation import Augment, AugmentConfig
from vitrail.data.augment.paste import check_batch, copy_paste, mosaic, partners, tiles
from vitrail.data.augment.zoom import pixel_steps
from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.data.randomness import Stream
from vitrail.data.targets import BoxesTarget, ClassTarget, DepthTarget, MaskTarget
from vitrail.data.targets.boxes_target import BOX, CLASS, Box
from vitrail.data.targets.mask_target import IGNORE
from vitrail.errors import ConfigError

few = settings(max_examples=25, deadline=None, derandomize=True)
SIZE = (64, 80)
BLACK = torch.zeros(3, 1, 1)
PREPROCESS = Preprocess(image_size=SIZE, resize="pad", mean=(0.0,), std=(1.0,))
CLASSES = tuple("abcdefgh")


def scenes(count=8, seed=0):
    """White rectangles on black, one in each image, with its box, mask and depth; the class is the image's number."""
    chance = torch.Generator().manual_seed(seed)
    images, masks = torch.zeros(count, 3, *SIZE, dtype=torch.uint8), torch.zeros(count, *SIZE, dtype=torch.uint8)
    rows = []
    for number in range(count):
        left, top = (int(torch.randint(4, 30, (1,), generator=chance)) for _ in range(2))
        wide, tall = (int(torch.randint(14, 30, (1,), generator=chance)) for _ in range(2))
        images[number, :, top : top + tall, left : left + wide] = 255
        masks[number, top : top + tall, left : left + wide] = 1
        rows.append([Box((left, top, left + wide, top + tall), CLASSES[number])])
    target, boxes = BoxesTarget.of(rows, CLASSES)
    schema = {"boxes": target, "mask": MaskTarget(classes=("ground", "object")), "depth": DepthTarget()}
    targets = {"boxes": boxes, "mask": masks, "depth": 5.0 - 3.0 * masks.float()}
    return Batch(images, targets, torch.arange(count)), schema


def hull(seen):
    """x1 y1 x2 y2 of true pixels H W."""
    rows, columns = seen.any(1).nonzero()[:, 0], seen.any(0).nonzero()[:, 0]
    return torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], dtype=torch.float32)


@few
@given(seed=st.integers(0, 1000))
def test_the_boxes_of_a_mosaic_are_where_its_pixels_are(seed):
    batch, schema = scenes()
    stream = Stream(seed, 0, batch.ids)
    steps = pixel_steps(SIZE, SIZE, torch.ones(8), "pad")
    base = batch.images.float(), dict(batch.targets)
    drawn = torch.ones(8, dtype=torch.bool)
    pixels, targets = mosaic(
        base, (batch.images, batch.targets), stream, schema, steps=steps, drawn=drawn, flips=True, zoom=(0.5, 1.5),
        fill=BLACK,
    )  # fmt: skip
    regions, _ = tiles(stream.uniform("mosaic.centre", 2), SIZE)
    boxes = targets["boxes"]
    assert boxes.shape == (8, 5, 7)
    for sample in range(8):
        for tile in range(4):
            number = sample ^ tile
            seen = (pixels[sample, 0] > 127) & regions[sample, tile]
            rows = boxes[sample][boxes[sample, :, CLASS] == number]
            assert len(rows) <= 1
            if not len(rows):  # hardly visible: left out
                assert seen.sum() < 0.35 * 30 * 30 * 1.5**2
                continue
            if min(rows[0, 2] - rows[0, 0], rows[0, 3] - rows[0, 1]) < 4:
                continue  # too thin to be half as bright
            assert (hull(seen) - rows[0, BOX]).abs().max() <= 1.0


@few
@given(seed=st.integers(0, 1000), paste=st.booleans())
def test_masks_and_depth_are_those_of_the_pixels(seed, paste):
    batch, schema = scenes()
    config = AugmentConfig(crop="jitter", zoom=(0.7, 1.5), mosaic=0.7, copy_paste=0.5 if paste else 0.0)
    found = Augment(config, PREPROCESS, seed=seed, schema=schema)(batch, 0)
    bright, mask = found.images[:, 0] > 0.5, found.targets["mask"]
    outside = mask == IGNORE
    assert ((mask == 1) == bright)[~outside].float().mean() > 0.97  # edges
    assert not bright[outside].any() or bright[outside].float().mean() < 0.02
    assert torch.equal(found.targets["depth"] == 2.0, mask == 1)
    assert torch.equal(found.targets["depth"] == 0.0, outside)


def test_tiles_are_a_partition():
    regions, corners = tiles(torch.tensor([[0.0, 0.0], [0.5, 0.99]]), SIZE)
    assert (regions.sum(1) == 1).all()
    assert corners[0, 0].tolist() == [0, 0, 20, 16]
    sides = corners[:, :, 2:] - corners[:, :, :2]
    assert sides.prod(2).sum(1).tolist() == [SIZE[0] * SIZE[1]] * 2


@pytest.mark.parametrize("epoch", [3, 4, torch.tensor(4)])
def test_the_last_epochs_are_plain(epoch):
    batch, schema = scenes()
    plain = Augment(AugmentConfig(crop="none"), PREPROCESS, seed=3, schema=schema)(batch, epoch)
    config = AugmentConfig(crop="none", mosaic=1.0, copy_paste=1.0, plain_epochs=2)
    pasted = Augment(config, PREPROCESS, seed=3, schema=schema, epochs=5)
    found = pasted(batch, epoch)
    assert torch.equal(found.images, plain.images)
    assert torch.equal(found.targets["mask"], plain.targets["mask"])
    valid = BoxesTarget.valid(found.targets["boxes"])
    assert torch.equal(found.targets["boxes"][valid], plain.targets["boxes"][:, 0])
    assert not torch.equal(pasted(batch, 2).images, plain.images)


def test_pasted_objects_hide_what_is_behind_them():
    images = torch.zeros(2, 3, *SIZE)
    images[1, :, 10:30, 10:30] = 255
    rows = [[Box((12, 12, 28, 28), "a"), Box((50, 40, 60, 50), "a")], [Box((10, 10, 30, 30), "b")]]
    target, boxes = BoxesTarget.of(rows)
    for seed in range(20):  # until the object of the second image is chosen
        found, targets = copy_paste(
            (images, {"boxes": boxes}), Stream(seed, 0, torch.arange(2)), {"boxes": target}, drawn=torch.ones(2).bool()
        )
        if found[0].any():
            break
    valid = targets["boxes"][0][target.valid(targets["boxes"])[0]]
    assert valid[:, CLASS].tolist() == [0, 1]  # the box that is covered is gone
    assert valid[1, BOX].tolist() == [10, 10, 30, 30]


def test_the_result_does_not_depend_on_the_rest_of_the_batch():
    batch, schema = scenes()
    run = Augment(AugmentConfig(crop="jitter", mosaic=0.8, copy_paste=0.5), PREPROCESS, seed=1, schema=schema)
    whole = run(batch, 2)
    half = run(Batch(batch.images[4:], {name: one[4:] for name, one in batch.targets.items()}, batch.ids[4:]), 2)
    torch.testing.assert_close(half.images, whole.images[4:])
    for name in schema:
        torch.testing.assert_close(half.targets[name], whole.targets[name][4:])


def test_a_single_image_and_an_empty_batch():
    batch, schema = scenes()
    run = Augment(AugmentConfig(mosaic=1.0, copy_paste=1.0), PREPROCESS, seed=1, schema=schema)
    for count in (0, 1, 3):
        part = Batch(
            batch.images[:count], {name: one[:count] for name, one in batch.targets.items()}, batch.ids[:count]
        )
        assert len(run(part, 0).images) == count


def test_turned_boxes_hold_their_pixels():
    batch, schema = scenes()
    config = AugmentConfig(crop="none", rotate=30.0, flip=False)
    found = Augment(config, PREPROCESS, seed=0, schema=schema)(batch, 0)
    for image, value in zip(found.images, found.targets["boxes"], strict=True):
        seen = hull(image[0] > 0.5)
        assert (seen[:2] >= value[0, :2] - 1).all()
        assert (seen[2:] <= value[0, 2:4] + 1).all()


@pytest.mark.parametrize("mosaic", [0.0, 1.0])
def test_boxes_go_upside_down_with_their_pixels(mosaic):
    batch, schema = scenes()
    config = AugmentConfig(crop="none", flip=False, flip_vertical=True, mosaic=mosaic, plain_epochs=1)
    run = Augment(config, PREPROCESS, seed=0, schema=schema, epochs=1)
    plain = Augment(replace(config, flip_vertical=False), PREPROCESS, seed=0, schema=schema, epochs=1)(batch, 0)
    found = run(batch, 0)
    turned = [not torch.equal(one, before) for one, before in zip(found.images, plain.images, strict=True)]
    assert 0 < sum(turned) < len(turned)
    for image, before, value, drawn in zip(found.images, plain.images, found.targets["boxes"], turned, strict=True):
        assert torch.equal(image, before.flip(1) if drawn else before)
        assert (hull(image[0] > 0.5) - value[0, :4]).abs().max() <= 1


def test_a_class_for_each_image_cannot_be_pasted():
    batch, _ = scenes()
    target = ClassTarget(classes=("a", "b"))
    labels = batch._replace(targets={"label": torch.zeros(8, dtype=torch.int64)})
    config = AugmentConfig(mosaic=1.0)
    with pytest.raises(ConfigError, match="mosaic"):
        Augment(config, PREPROCESS, seed=0, schema={"label": target})(labels, 0)
    off = replace(config, mosaic=0.0)
    Augment(off, PREPROCESS, seed=0, schema={"label": target})(labels, 0)


@pytest.mark.parametrize("count", range(1, 14))
def test_the_last_group_of_a_batch_may_be_smaller(count):
    found = torch.stack([partners(count, tile, torch.device("cpu")) for tile in range(4)])  # 4 B
    assert found[0].tolist() == list(range(count))
    assert torch.equal(found // 4, (torch.arange(count) // 4).expand(4, -1))  # never of another group
    assert int(found.max()) == count - 1
    for first in range(0, count // 4 * 4, 4):
        assert all(sorted(one) == list(range(first, first + 4)) for one in found[:, first : first + 4].T.tolist())


def test_groups_are_not_split_over_processes():
    check_batch(6, 1)
    check_batch(16, 4)
    with pytest.raises(ConfigError, match="32"):
        check_batch(28, 4)
