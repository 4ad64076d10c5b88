"""Blocks of decoded images: the same bytes by threads and by processes, broken images and all."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.numbered_images import Numbered

from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset, Subset
from vitrail.data.feeds import decode_blocks as module
from vitrail.data.feeds.decode_blocks import Block, decode_blocks
from vitrail.data.feeds.decode_worker import Also
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import read_folder

FIT = Preprocess(image_size=(10, 12))
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes decode on systems with fork")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """31 images of many sizes in two folders; the sixth and the last cannot be read."""
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(31):
        path = root / ("cat" if number < 16 else "dog") / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        height, width = draw.integers(12, 40, 2)
        Image.fromarray(draw.integers(0, 256, (int(height), int(width), 3), dtype=np.uint8)).save(path)
    for broken in ("cat/05.png", "dog/30.png"):
        (root / broken).write_bytes(b"\x89PNG\r\n\x1a\n")
    return read_folder(root).train


def blocks(data: Dataset, *, workers: int) -> list[Block]:
    return list(decode_blocks(data, FIT, workers=workers, size=7))


def good(block: Block) -> torch.Tensor:
    """The images that could be read."""
    return block.images[[row for row in range(len(block.answers)) if row not in block.broken]]


def test_threads_give_blocks_in_order(photos: Dataset) -> None:
    found = blocks(photos, workers=2)
    assert [len(block.answers) for block in found] == [7, 7, 7, 7, 3]
    assert [list(block.broken) for block in found] == [[5], [], [], [], [2]]
    assert [list(block.indices) for block in found][-1] == [28, 29, 30]
    image = photos.read(6)
    assert found[0].sizes[5] == tuple(image.shape[1:])
    assert torch.equal(found[0].images[6], FIT.fit(image[None])[0][0])


@needs_fork
@pytest.mark.timeout(60)
def test_processes_give_the_same_blocks(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = blocks(photos, workers=2)
    monkeypatch.setattr(module, "_FEW_CORES", 1)
    monkeypatch.setattr(module, "_FEW_IMAGES", 1)
    monkeypatch.setattr(module, "_by_threads", None)  # must not be needed
    found = blocks(photos, workers=2)
    assert [block.answers for block in found] == [block.answers for block in expected]
    assert all(torch.equal(good(one), good(other)) for one, other in zip(found, expected, strict=True))


@needs_fork
def test_data_that_cannot_be_pickled_are_decoded_by_threads(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW_CORES", 1)
    monkeypatch.setattr(module, "_FEW_IMAGES", 1)
    monkeypatch.setattr(photos, "unsent", lambda: None, raising=False)
    assert len(blocks(photos, workers=2)) == 5


def test_classes_of_a_user_are_decoded_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW_CORES", 1)
    monkeypatch.setattr(module, "_FEW_IMAGES", 1)
    monkeypatch.setattr(module, "DecodePool", None)  # must not be needed
    found = blocks(Subset(Numbered(9), range(8)), workers=2)
    assert [int(image[0, 0, 0]) for block in found for image in block.images] == list(range(8))


@needs_fork
@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [False, True])
def test_any_order_and_a_second_size_of_some(photos: Dataset, processes: bool) -> None:
    also, order = Also(Preprocess(image_size=(5, 5)), {9, 20}), [20, 3, 9, 8, 1]
    options = {"workers": 2, "size": 2, "order": order, "more": [also], "processes": processes}
    found = list(decode_blocks(photos, FIT, **options))
    assert [index for block in found for index in block.indices] == order
    for block in found:
        for row, index in enumerate(block.indices):
            image = photos.read(index)[None]
            assert torch.equal(block.images[row], FIT.fit(image)[0][0])
            assert index not in also.of or torch.equal(block.more[0][row], also.fit.fit(image)[0][0])


@needs_fork
@pytest.mark.timeout(60)
def test_both_write_the_same_file(photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.feeds.cold._BLOCK", 10 * 12 * 3 * 4)
    names = []
    for name, few in (("threads", 10**9), ("processes", 1)):
        monkeypatch.setattr(module, "_FEW_CORES", few)
        monkeypatch.setattr(module, "_FEW_IMAGES", 1)
        found = pack(photos, FIT, folder=tmp_path / name, workers=2, tally=Tally(10_000))
        assert len(found) == 29
        names.append(next((tmp_path / name).glob("*.pack")).read_bytes())
    assert names[0] == names[1]
