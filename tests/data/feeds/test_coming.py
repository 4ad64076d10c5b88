"""Batches of images that are being packed: they wait for their rows alone; a broken image starts a run again."""

import threading
from pathlib import Path

import pytest
import torch
from support.numbered_images import Numbered

from vitrail.data.broken import Tally
from vitrail.data.dataset import RandomSubset
from vitrail.data.feeds import coming
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.coming import Coming, ComingBatches, Filling, Job, Rewind, first_order
from vitrail.data.feeds.packing import pack, wanted_file
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

FIT = Preprocess(image_size=(4, 4))
OPTIONS = {"batch_size": 4, "seed": 3, "shuffle": True, "device": "cpu"}


class Held(Numbered):
    """Images that can be read as soon as they are allowed to."""

    def __init__(self, count: int, **options: object) -> None:
        super().__init__(count, **options)
        self.allowed = [threading.Event() for _ in range(count)]

    def read(self, index: int) -> torch.Tensor:
        assert self.allowed[index].wait(20)
        return super().read(index)

    def allow(self, *numbers: int) -> None:
        for number in numbers:
            self.allowed[number].set()


def begin(data: Numbered, folder: Path, *, part: list[int], tally: int = 1000) -> tuple[Coming, Coming]:
    """A part of the images, and others, of a file that is being filled in the order of the first part."""
    wanted = wanted_file(data, FIT, folder)
    assert wanted is not None
    filling = Filling(Tally(tally), workers=1)
    rest = [number for number in range(len(data)) if number not in part]
    sets = [RandomSubset(data, numbers) for numbers in (part, rest)]

    def opened(one: RandomSubset) -> object:
        return lambda: pack(one, FIT, folder=folder, whole=True, tally=Tally(1000))

    first, second = (Coming(one, wanted, filling, opened(one)) for one in sets)
    filling.start([Job(wanted=wanted, order=first_order(first, seed=3))])
    return first, second


@pytest.mark.timeout(60)
def test_a_batch_waits_for_its_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.feeds.cold._BLOCK", 1)  # an image a block
    data, part = Held(12), [11, 1, 9, 2, 7, 5, 0, 3]
    train, val = begin(data, tmp_path, part=part)
    order = ComingBatches(train, **OPTIONS).order(0).tolist()
    batches = ComingBatches(train, **OPTIONS).epoch(0)
    data.allow(*(part[at] for at in order[:4]))
    first = next(batches)
    assert first.ids.tolist() == order[:4]
    assert first.images[:, 0, 0, 0].tolist() == [part[at] for at in order[:4]]
    assert not train.done
    data.allow(*range(12))
    rest = list(batches)
    plain = Batches(pack(train.dataset, FIT, folder=tmp_path / "apart", whole=True), **OPTIONS)
    assert [batch.ids.tolist() for batch in [first, *rest]] == [batch.ids.tolist() for batch in plain.epoch(0)]
    assert val.packed().ids.tolist() == [0, 1, 2, 3]
    feed = ComingBatches(train, **OPTIONS)
    for epoch in (0, 1):  # from the file that is complete
        for one, other in zip(feed.epoch(epoch), plain.epoch(epoch), strict=True):
            assert torch.equal(one.images, other.images)
    assert train.checksum() == plain.data.checksum()


@pytest.mark.timeout(60)
def test_a_broken_image_ends_it_and_the_file_is_complete(tmp_path: Path) -> None:
    train, val = begin(Numbered(12, broken=[4]), tmp_path, part=[0, 1, 2, 3, 5])
    with pytest.raises(Rewind):
        val.packed()
    with pytest.raises(Rewind):
        list(ComingBatches(val, **OPTIONS).epoch(0))
    assert train.packed().ids.tolist() == list(range(5))
    assert len(pack(Numbered(12), FIT, folder=tmp_path, tally=Tally(1000))) == 11


@pytest.mark.timeout(60)
def test_an_error_of_the_thread_reaches_whoever_waits(tmp_path: Path) -> None:
    train, _ = begin(Numbered(12, broken=range(6)), tmp_path, part=[7, 8, 9], tally=12)
    with pytest.raises(DataError, match="limit"):
        train.packed()
    with pytest.raises(DataError, match="limit"):
        next(ComingBatches(train, **OPTIONS).epoch(0))
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(60)
def test_files_that_another_process_has_built_meanwhile_are_used(tmp_path: Path) -> None:
    pack(Numbered(12), FIT, folder=tmp_path)
    data = Numbered(12)
    data.read = None  # type: ignore[assignment,method-assign]
    train, _ = begin(data, tmp_path, part=[3, 1])
    assert [int(batch.images[0, 0, 0, 0]) for batch in ComingBatches(train, **OPTIONS | {"batch_size": 1}).epoch(0)]
    assert coming.Coming is type(train)
