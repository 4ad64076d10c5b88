"""Balanced sampling: how often classes come, that an epoch can start anywhere, and that repeats are told apart."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_data import CLASSES, Made, photos

from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.packing import pack
from vitrail.data.feeds.sampler import balanced_order, expected_counts, strata_of
from vitrail.data.feeds.streamed import Streamed, StreamedBatches
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import LabelsTarget
from vitrail.data.targets.numbers_target import NumbersTarget
from vitrail.errors import ConfigError

FIT = Preprocess(image_size=(8, 8))


def drawn(strata: torch.Tensor, power: float, seed: int = 0) -> torch.Tensor:
    return balanced_order(strata, power, torch.Generator().manual_seed(seed))


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), power=st.floats(0, 1), seed=st.integers(0, 2**32 - 1)
)
def test_classes_come_as_often_as_their_share(counts: list[int], power: float, seed: int) -> None:
    strata = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    order = drawn(strata, power, seed)
    assert len(order) == len(strata)
    assert len(order.unique()) == len(order)  # a repeat has another number
    came = torch.bincount(strata[order % len(strata)], minlength=len(counts))
    assert (came - expected_counts(strata, power)).abs().max() < 1 + 1e-6
    times = torch.bincount(order % len(strata), minlength=len(strata))
    for group in range(len(counts)):
        of_group = times[strata == group]
        assert of_group.max() - of_group.min() <= 1


def test_power_0_is_every_image_once_and_1_equal_shares() -> None:
    strata = torch.tensor([0] * 90 + [1] * 10)
    assert drawn(strata, 0.0).sort().values.tolist() == list(range(100))
    assert expected_counts(strata, 1.0).tolist() == [50, 50]
    assert expected_counts(strata, 0.5).tolist() == pytest.approx([75, 25])


def test_rounding_has_no_bias() -> None:
    strata = torch.tensor([0] * 8 + [1, 2])  # 10 / 3 each
    came = sum(torch.bincount(strata[drawn(strata, 1.0, seed) % 10], minlength=3) for seed in range(300))
    assert (came / 300 - 10 / 3).abs().max() < 0.1


def uneven(count: int = 40) -> Made:
    made = photos(count, size=8)
    made.targets["label"] = (torch.arange(count) % 10 == 0).long()
    return made


def test_batches_are_balanced_and_can_start_anywhere() -> None:
    feed = Batches(pack(uneven(), FIT), batch_size=8, seed=3, shuffle=True, device="cpu", drop_last=True, balance=1.0)
    batches = list(feed.epoch(2))
    assert sum(int(batch.targets["label"].sum()) for batch in batches) == 20
    ids = torch.cat([batch.ids for batch in batches])
    assert len(ids.unique()) == 40  # five times each rare image: each is augmented in its own way
    assert ids.max() >= 40
    later = list(feed.epoch(2, start=3))
    assert torch.equal(later[0].ids, batches[3].ids)
    assert torch.equal(later[0].images, batches[3].images)


def test_ranks_share_the_batches_of_one_process() -> None:
    def ids(**place: int) -> list[list[int]]:
        options = {"batch_size": 8, "seed": 1, "shuffle": True, "device": "cpu", "drop_last": True, "balance": 0.5}
        return [batch.ids.tolist() for batch in Batches(pack(uneven(), FIT), **options, **place).epoch(0)]

    halves = zip(ids(rank=0, world=2), ids(rank=1, world=2), strict=True)
    assert [first + second for first, second in halves] == ids()


def test_streamed_images_come_as_packed_ones_do(folder_of_photos: Path) -> None:
    from vitrail.data.sources.folder import read_folder

    data = read_folder(folder_of_photos).train
    options = {"batch_size": 4, "seed": 0, "shuffle": True, "device": "cpu", "drop_last": True, "balance": 1.0}
    packed = list(Batches(pack(data, FIT), **options).epoch(1))
    streamed = list(StreamedBatches(Streamed(data, FIT, workers=1), **options).epoch(1))
    assert all(torch.equal(one.ids, other.ids) for one, other in zip(packed, streamed, strict=True))
    assert all(torch.equal(one.images, other.images) for one, other in zip(packed, streamed, strict=True))
    assert max(int(batch.ids.max()) for batch in packed) >= len(data)


@pytest.fixture
def folder_of_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from PIL import Image

    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    for number in range(12):
        file = tmp_path / "photos" / ("rare" if number < 2 else "usual") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(file)
    return tmp_path / "photos"


def test_of_several_labels_the_rarest_is_balanced() -> None:
    marks = torch.tensor([[1.0, 0], [1, 1], [1, 0], [0, 0]])
    strata = strata_of({"labels": LabelsTarget(classes=("a", "b"))}, {"labels": marks})
    assert strata.tolist() == [0, 1, 0, -1]
    assert len(drawn(strata, 1.0)) == 4


def test_without_classes_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes"):
        strata_of({}, {})
    assert strata_of(CLASSES, {"label": torch.tensor([1, 0])}).tolist() == [1, 0]
    target = NumbersTarget(names=("age",))
    assert len(strata_of({"numbers": target}, {"numbers": torch.rand(9, 1)})) == 9
