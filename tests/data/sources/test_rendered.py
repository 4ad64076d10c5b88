"""Rendered scenes as a data set."""

import os
import pickle

import pytest
import torch
from support.annotated import depth

from vitrail.data.feeds.packing import pack, pack_path
from vitrail.data.feeds.streamed import Streamed, StreamedBatches
from vitrail.data.preprocess import Preprocess
from vitrail.data.render.renderer import CLASSES
from vitrail.data.sources.opening import find, open_data
from vitrail.data.sources.rendered import RenderedScenes
from vitrail.data.sources.table import Wanted
from vitrail.data.targets.boxes_target import BOX, CLASS, IGNORE
from vitrail.errors import DataError

ALL = ("boxes", "mask", "depth")


def load(dataset, name, index):
    return dataset.schema[name].load(dataset.targets[name][index])


def test_depth_without_a_task_and_others_by_their_kinds():
    found = find("scenes:20:16")
    assert list(found.train.schema) == ["depth"]
    assert (len(found.train), len(found.val), len(found.test)) == (20, 2, 2)
    assert "train 20" in found.notes[0]
    assert list(find("scenes:4:16", wanted=Wanted(kinds=("mask",))).train.schema) == ["mask"]
    assert list(find("scenes:4:16", wanted=Wanted(kinds=ALL)).train.schema) == list(ALL)
    assert find("scenes:4:16", wanted=Wanted(targets=False)).train.schema == {}
    places = find("scenes:9:16", wanted=Wanted(kinds=("class",))).train
    rooms = [places.number(index).scene.room is not None for index in range(9)]
    assert [places.schema["label"].text(value) == "indoors" for value in places.targets["label"]] == rooms
    assert find("scenes:5:16x24").train.read(0).shape == (3, 16, 24)


def test_a_folder_called_scenes_is_that_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("scenes").train.read(0).shape == (3, 128, 128)
    depth(tmp_path / "scenes")
    assert "scenes has" in find("scenes").notes[0]
    assert "Rendered" in find("scenes:4").notes[0]


@pytest.mark.parametrize(
    "text",
    [
        *("scenes:", "scenes:0", "scenes:many", "scenes:5:2", "scenes:5:9999", "scenes:5:16x"),
        *("scenes:1000001", "scenes:99999999999", "scenes:" + 5000 * "9", "scenes:5:" + 5000 * "9"),
    ],
)
def test_other_names_are_refused(text):
    with pytest.raises(DataError, match="scenes"):
        find(text)


def test_the_splits_have_different_scenes_and_the_same_seed_the_same_ones():
    found, again = find("scenes:3:16"), find("scenes:3:16")
    assert torch.equal(found.train.read(1), again.train.read(1))
    assert torch.equal(load(found.train, "depth", 1), load(again.train, "depth", 1))
    assert not torch.equal(found.train.read(0), found.test.read(0))
    assert not torch.equal(found.train.read(0), RenderedScenes(3, size=(16, 16), seed=1).read(0))
    prints = {part.fingerprint for part in (found.train, found.val, found.test, find("scenes:4:16").train)}
    assert len(prints) == 4


def test_sets_of_other_numbers_or_sizes_have_packs_of_their_own():
    fit = Preprocess(image_size=(16, 16))
    parts = (find(text).train for text in ("scenes:3:16", "scenes:4:16", "scenes:3:24"))
    assert len({pack_path(part, fit) for part in parts}) == 3


def test_all_targets_fit_the_image():
    train = open_data("scenes:12:32", wanted=Wanted(kinds=ALL)).train
    for index in range(len(train)):
        mask, depth, boxes = (load(train, name, index) for name in ("mask", "depth", "boxes"))
        assert mask.shape == depth.shape == train.read(index).shape[1:]
        assert bool(((depth > 0) | (mask == CLASSES.index("sky")) | (mask == CLASSES.index("ground"))).all())
        for row in boxes[boxes[:, CLASS] >= 0]:
            x1, y1, x2, y2 = row[BOX].int().tolist()
            part = mask[y1:y2, x1:x2] == row[CLASS]
            assert part.any(0)[[0, -1]].all()
            assert part.any(1)[[0, -1]].all()
    values = train.targets["boxes"]
    assert bool((values[..., IGNORE][values[..., CLASS] < 0] == 0).all())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="images are streamed on systems with fork")
def test_both_feeds_have_the_same_images_and_targets(tmp_path):
    train = find("scenes:6:24", wanted=Wanted(kinds=ALL)).train
    train = pickle.loads(pickle.dumps(train))
    fit = Preprocess(image_size=(16, 16), resize="squash")
    packed = pack(train, fit, folder=tmp_path)
    feed = StreamedBatches(Streamed(train, fit, workers=1), batch_size=6, seed=0, shuffle=False, device="cpu")
    (batch,) = feed.epoch(0)
    assert torch.equal(batch.images, packed.images)
    for name in ALL:
        assert torch.equal(batch.targets[name], packed.targets[name])
    assert packed.targets["depth"].shape == (6, 16, 16)
