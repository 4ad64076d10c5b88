"""Packed or streamed: by the bytes to write, the free disk and a cap; never hundreds of gigabytes unasked."""

import shutil
from pathlib import Path

import pytest
from support.numbered_images import Numbered
from support.small_data import photos

from vitrail.data.feeds import choice as module
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.choice import choose, make_feed, open_images
from vitrail.data.feeds.feed import ImageSet
from vitrail.data.feeds.packing import Packed, pack
from vitrail.data.feeds.streamed import Streamed, StreamedBatches
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError

FIT = Preprocess(image_size=(4, 4))
NEEDED = 20 * 3 * 4 * 4
OPTIONS = {"batch_size": 4, "seed": 0, "shuffle": False, "device": "cpu"}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Sets the bytes that are free on the disk."""

    def set_free(count: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10 * count, 9 * count, count))

    return set_free


def test_a_third_of_the_free_disk_is_the_most_that_is_packed_unasked(tmp_path: Path, free) -> None:
    parts = [(Numbered(20), FIT)]
    free(3 * NEEDED)
    assert choose(parts, folder=tmp_path / "not" / "yet" / "there") == ("packed", None)
    free(3 * NEEDED - 1)
    chosen = choose(parts, folder=tmp_path)
    assert chosen.feed == "streamed"
    assert chosen.note is not None
    for word in ("960 B", "2.81 KiB", "third", "feed=packed", str(tmp_path)):
        assert word in chosen.note
    assert choose(parts * 2, folder=tmp_path, wanted="packed") == ("packed", None)


def test_a_million_photos_are_not_packed_unasked_on_any_disk(tmp_path: Path, free) -> None:
    free(10 << 40)
    photographs = Numbered(1_281_167)
    stored = Preprocess(image_size=(256, 256))
    chosen = choose([(photographs, stored)], folder=tmp_path)
    assert chosen.feed == "streamed"
    assert "64 GiB" in str(chosen.note)
    large = choose([(Numbered(100_000), stored)], folder=tmp_path)
    assert large.feed == "packed"
    assert "18" in str(large.note)


def test_what_is_packed_already_or_lies_in_memory_takes_nothing(tmp_path: Path, free) -> None:
    free(NEEDED)
    dataset = Numbered(20)
    assert choose([(dataset, FIT)], folder=tmp_path).feed == "streamed"
    assert choose([(photos(20, size=8), FIT)], folder=tmp_path).feed == "packed"
    pack(dataset, FIT, folder=tmp_path)
    assert choose([(dataset, FIT)], folder=tmp_path).feed == "packed"


def test_images_are_opened_as_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    streamed = open_images(Numbered(20), FIT, feed="streamed")
    assert isinstance(make_feed(streamed, **OPTIONS), StreamedBatches)
    assert isinstance(open_images(photos(20, size=8), FIT, feed="streamed"), Packed)  # it lies in memory
    monkeypatch.setattr(module, "MOST", 10)
    assert isinstance(open_images(Numbered(20), FIT), Streamed)
    packed = open_images(Numbered(20), FIT, feed="packed")
    assert isinstance(make_feed(packed, **OPTIONS), Batches)
    assert isinstance(open_images(Numbered(20), FIT), Packed)  # as it is packed now
    assert packed.checksum() != streamed.checksum() == Streamed(Numbered(20), FIT).checksum()


def test_another_kind_of_image_set_is_refused() -> None:
    class Other(Streamed):
        pass

    assert isinstance(make_feed(Other(Numbered(20), FIT), **OPTIONS), StreamedBatches)
    with pytest.raises(ConfigError, match="int"):
        make_feed(3, **OPTIONS)  # type: ignore[arg-type]
    assert issubclass(Packed, ImageSet)
