"""Masks, depth maps and boxes travel with their images through both feeds."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.dataset import RandomSubset
from vitrail.data.feeds.choice import make_feed
from vitrail.data.feeds.dense import SampleLayout, dense_bytes
from vitrail.data.feeds.packing import pack
from vitrail.data.feeds.streamed import Streamed
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import Files
from vitrail.data.targets import BoxesTarget, DepthTarget, MaskTarget
from vitrail.data.targets.boxes_target import Box
from vitrail.data.targets.depth_target import depth_references
from vitrail.data.targets.mask_target import IGNORE, mask_classes
from vitrail.data.targets.pixel_files import references
from vitrail.errors import DataError

FIT = Preprocess(image_size=(12, 16), resize="pad", interpolation="nearest")
COUNT = 9


def scenes(folder: Path) -> Files:
    """Grey images of several sizes with a square each, its mask, its depth and its box."""
    paths, masks, depths, boxes = [], [], [], []
    for number in range(COUNT):
        height, width = 24 + 4 * (number % 3), 32 - 8 * (number % 2)
        square = np.zeros((height, width), np.uint8)
        top, left = 2 + number, 3 + number % 5
        square[top : top + 8, left : left + 10] = 1
        Image.fromarray(40 + 200 * square).save(folder / f"{number}.png")
        Image.fromarray(square).save(folder / f"{number}_mask.png")
        np.save(folder / f"{number}_depth.npy", np.where(square, 2.0, 7.5).astype(np.float32))
        paths.append(f"{number}.png")
        masks.append(folder / f"{number}_mask.png")
        depths.append(folder / f"{number}_depth.npy")
        boxes.append([Box((left, top, left + 10, top + 8), "square")])
    classes, table = mask_classes({0, 1})
    target, values = BoxesTarget.of(boxes)
    targets = {"boxes": values, "mask": references(masks, [table] * COUNT), "depth": depth_references(depths)}
    return Files(folder, paths, targets, {"boxes": target, "mask": MaskTarget(classes=classes), "depth": DepthTarget()})


def batch_of(data, count=COUNT):
    (batch,) = make_feed(data, batch_size=count, seed=0, shuffle=False, device="cpu").epoch(0)
    return batch


def test_pixels_and_targets_agree_after_packing(tmp_path):
    dataset = scenes(tmp_path)
    packed = pack(dataset, FIT, folder=tmp_path / "cache")
    batch = batch_of(packed)
    bright = batch.images[:, 0] > 150  # B H W: the square
    margin = batch.targets["mask"] == IGNORE
    assert (batch.targets["mask"][bright] == 1).all()
    assert (batch.targets["mask"][~bright & ~margin] == 0).all()
    assert (batch.targets["depth"][bright] == 2.0).all()
    assert (batch.targets["depth"][margin] == 0.0).all()
    for value, seen in zip(batch.targets["boxes"][:, 0], bright, strict=True):
        rows, columns = seen.any(1).nonzero()[:, 0], seen.any(0).nonzero()[:, 0]
        found = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        assert (value[:4] - found).abs().max() <= 0.5


def test_streamed_batches_are_those_of_packed_images(tmp_path):
    dataset = scenes(tmp_path)
    packed = batch_of(pack(dataset, FIT, folder=tmp_path / "cache"))
    streamed = batch_of(Streamed(dataset, FIT, workers=2))
    assert torch.equal(packed.images, streamed.images)
    assert packed.targets.keys() == streamed.targets.keys()
    for name, values in packed.targets.items():
        assert torch.equal(values, streamed.targets[name]), name
        assert values.dtype == streamed.targets[name].dtype


def test_a_file_is_used_again_and_rebuilt_after_a_change(tmp_path):
    first = pack(scenes(tmp_path), FIT, folder=tmp_path / "cache")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*.pack")}
    assert len(files) == 3  # images, masks, depth
    pack(scenes_without_writing(tmp_path), FIT, folder=tmp_path / "cache")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*.pack")}
    path = tmp_path / "3_mask.png"
    Image.fromarray(1 - np.asarray(Image.open(path))).save(path)
    os.utime(path, ns=(1, 1))
    dataset = scenes_without_writing(tmp_path)
    with pytest.warns(UserWarning, match="rebuilt"):
        changed = pack(dataset, FIT, folder=tmp_path / "cache")
    assert changed.checksum() != first.checksum()
    assert not torch.equal(changed.targets["mask"][3], first.targets["mask"][3])


def scenes_without_writing(folder: Path) -> Files:
    """The data set of files that are there."""
    masks = [folder / f"{number}_mask.png" for number in range(COUNT)]
    depths = [folder / f"{number}_depth.npy" for number in range(COUNT)]
    classes, table = mask_classes({0, 1})
    targets = {"mask": references(masks, [table] * COUNT), "depth": depth_references(depths)}
    schema = {"mask": MaskTarget(classes=classes), "depth": DepthTarget()}
    return Files(folder, [f"{number}.png" for number in range(COUNT)], targets, schema)


def test_two_parts_of_one_data_set_have_their_own_pixels(tmp_path):
    whole = scenes(tmp_path)
    parts = RandomSubset(whole, [0, 2, 5]), RandomSubset(whole, [1, 3, 4, 6, 7, 8])
    every = pack(whole, FIT, folder=tmp_path / "cache").targets["mask"]
    for part in parts:
        found = pack(part, FIT, folder=tmp_path / "cache", whole=True).targets["mask"]
        assert torch.equal(found, every[part.indices])


def test_a_mask_of_another_size_is_named(tmp_path):
    dataset = scenes(tmp_path)
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(tmp_path / "4_mask.png")
    with pytest.raises(DataError, match=r"4\.png.*4_mask\.png.*7 x 5"):
        pack(dataset, FIT, folder=tmp_path / "cache")
    with pytest.raises(DataError, match=r"4_mask\.png"):  # one of nine images: over the limit
        batch_of(Streamed(dataset, FIT, workers=1))


def test_the_layout_of_a_sample():
    schema = {"depth": DepthTarget(), "mask": MaskTarget(classes=("a",))}
    fit = Preprocess(image_size=(3, 5), channels=1)
    layout = SampleLayout(fit, schema)
    assert layout.stride == 16 + 64 + 16
    assert dense_bytes(schema, (3, 5)) == 75
    rows = torch.zeros(2, 4, layout.stride, dtype=torch.uint8)
    views = layout.views(rows)
    assert {name: (tuple(view.shape), view.dtype) for name, view in views.items()} == {
        "": ((2, 4, 1, 3, 5), torch.uint8),
        "depth": ((2, 4, 3, 5), torch.float32),
        "mask": ((2, 4, 3, 5), torch.uint8),
    }
    views["depth"][1, 2] = 1.5
    assert rows[1, 2].any()
    assert rows[0].sum() == 0
    assert layout.empty(7, pinned=False)["mask"].shape == (7, 3, 5)
