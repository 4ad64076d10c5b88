"""Batches of packed images: the same on any number of processes and from any point, resident or collected ahead."""

import threading
from dataclasses import replace

import pytest
import torch
from support.small_data import grey_squares

from vitrail.data.dataset import Subset
from vitrail.data.feeds import batches as module
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.feed import AHEAD
from vitrail.data.feeds.packing import Packed, pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget

COUNT = 23


def packed(count=COUNT):
    ids = torch.arange(count) * 2 + 100  # as if every second image had been broken
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    return Packed(
        images=images,
        targets={"label": torch.arange(count) * 10},
        ids=ids,
        sizes=torch.full((count, 2), 4),
        schema={"label": ClassTarget(classes=("a",))},
        name="numbers",
        stored=Preprocess(image_size=(4, 4)),
    )


def part_of_many(count):
    """The same images, scattered among three times as many."""
    alone = packed(count)
    rows = torch.randperm(3 * count, generator=torch.Generator().manual_seed(4))[:count]
    images = torch.full((3 * count, 3, 4, 4), 255, dtype=torch.uint8)
    images[rows] = alone.images
    return replace(alone, images=images, rows=rows)


@pytest.fixture(params=["resident", "ahead", "part, resident", "part, ahead"])
def make(request, monkeypatch):
    """Batches, kept on the device, or collected ahead by a thread, of all images in a file or of some."""
    resident = request.param.endswith("resident")
    monkeypatch.setattr(module, "RESIDENT", 0.2 if resident else 0.0)

    def build(count=COUNT, **options):
        defaults = {"batch_size": 4, "seed": 0, "shuffle": True, "device": "cpu"}
        data = part_of_many(count) if request.param.startswith("part") else packed(count)
        made = Batches(data, **(defaults | options))
        assert made.resident == resident
        return made

    return build


def seen(batches, epoch=0, start=0):
    """The places of the images by batch, after a look that image, label and id belong together."""
    found = []
    for batch in batches.epoch(epoch, start):
        places = batch.images[:, 0, 0, 0].long()
        assert torch.equal(batch.images, places.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4))
        assert torch.equal(batch.targets["label"], places * 10)
        assert torch.equal(batch.ids, places * 2 + 100)
        found.append(places.tolist())
    return found


def flat(parts):
    return [place for part in parts for place in part]


def test_evaluation_loses_none_and_repeats_none(make):
    batches = make(shuffle=False)
    assert flat(seen(batches)) == list(range(COUNT))
    assert [len(part) for part in seen(batches)] == [4, 4, 4, 4, 4, 3]
    assert len(batches) == 6


def test_training_drops_the_rest(make):
    batches = make(drop_last=True)
    parts = seen(batches)
    assert len(parts) == len(batches) == 5
    assert len(set(flat(parts))) == 20


def test_a_small_part_of_many_does_not_fill_a_device():
    some, most = part_of_many(8), packed(8)
    most = replace(most, rows=torch.arange(1, 8), ids=most.ids[1:], targets={"label": most.targets["label"][1:]})
    for data, kept in ((some, 8), (most, 8)):  # of 24 images, and of 8
        batches = Batches(data, batch_size=4, seed=0, shuffle=False, device="meta")
        assert batches.resident
        assert len(batches._images) == kept
        assert [len(batch.images) for batch in batches.epoch(0)] == [4, len(data) - 4]


@pytest.mark.parametrize("start", [0, 1, 3, 6])
def test_resume_gives_exactly_the_rest(make, start):
    assert seen(make(), epoch=2, start=start) == seen(make(), epoch=2)[start:]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_any_world_sees_the_same_batches(make, world, drop_last):
    options = {"batch_size": 24, "count": 100, "drop_last": drop_last}
    alone = seen(make(**options), epoch=1)
    ranks = [seen(make(**options, rank=rank, world=world), epoch=1) for rank in range(world)]
    assert {len(parts) for parts in ranks} == {len(alone)}
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert flat(parts) == whole
        pairs = [tuple(whole[place : place + 2]) for place in range(0, len(whole), 2)]
        kept = [tuple(part[place : place + 2]) for part in parts for place in range(0, len(part), 2)]
        assert kept == pairs
    if drop_last:
        assert {len(part) for parts in ranks for part in parts} == {24 // world}


def test_a_rank_without_images_still_takes_the_step(make):
    parts = [seen(make(count=6, batch_size=4, world=4, rank=rank, shuffle=False)) for rank in range(4)]
    assert parts == [[[], []], [[0, 1], []], [[], []], [[2, 3], [4, 5]]]


def test_a_batch_is_not_changed_by_later_ones(make):
    kept = list(make(shuffle=False).epoch(0))
    assert [int(batch.images[0, 0, 0, 0]) for batch in kept] == [0, 4, 8, 12, 16, 20]


def test_waiting_is_measured(make):
    batches = make()
    assert batches.waited == 0
    seen(batches)
    once = batches.waited
    assert once > 0
    seen(batches)
    assert batches.waited > once


def test_waiting_counts_a_slow_source(monkeypatch):
    monkeypatch.setattr(module, "RESIDENT", 0.0)
    batches = Batches(packed(), batch_size=4, seed=0, shuffle=False, device="cpu")
    collect = batches._collect

    def slow(part):
        threading.Event().wait(0.02)
        return collect(part)

    monkeypatch.setattr(batches, "_collect", slow)
    seen(batches)
    assert batches.waited > 6 * 0.015


def test_giving_up_early_ends_the_thread(monkeypatch):
    monkeypatch.setattr(module, "RESIDENT", 0.0)
    batches = Batches(packed(250), batch_size=1, seed=0, shuffle=False, device="cpu")
    collect, made = batches._collect, []

    def count(part):
        made.append(part)
        return collect(part)

    monkeypatch.setattr(batches, "_collect", count)
    iterator = batches.epoch(0)
    next(iterator)
    assert "batches" in {thread.name for thread in threading.enumerate()}
    iterator.close()
    assert len(made) < 10
    assert "batches" not in {thread.name for thread in threading.enumerate()}


def test_later_epochs_decode_nothing(tmp_path, monkeypatch):
    class Counted(Subset):
        reads = 0

        def read(self, index):
            self.reads += 1
            return super().read(index)

    monkeypatch.setattr(module, "RESIDENT", 0.0)
    source = Counted(grey_squares(12, size=8), range(12))
    source.array = None  # as if each were a file
    batches = Batches(
        pack(source, Preprocess(image_size=(8, 8), channels=1), folder=tmp_path),
        batch_size=4,
        seed=0,
        shuffle=True,
        device="cpu",
    )
    assert source.reads == 12
    for epoch in range(3):
        for batch in batches.epoch(epoch):
            assert torch.equal(batch.images, source.whole.array[batch.ids])
    assert source.reads == 12


def test_the_next_batches_are_prepared_while_a_step_runs(monkeypatch):
    """The step itself waits for them, and nobody asks for them meanwhile: without a thread it would wait for ever."""
    monkeypatch.setattr(module, "RESIDENT", 0.0)
    batches = Batches(packed(), batch_size=4, seed=0, shuffle=False, device="cpu")
    collect, ready, prepared = batches._collect, threading.Condition(), []

    def noted(part):
        batch = collect(part)
        with ready:
            prepared.append(part)
            ready.notify_all()
        return batch

    monkeypatch.setattr(batches, "_collect", noted)
    for step, _ in enumerate(batches.epoch(0)):
        wanted = min(step + 1 + AHEAD, len(batches))
        with ready:
            assert ready.wait_for(lambda wanted=wanted: len(prepared) >= wanted, timeout=60), (
                "nothing is prepared ahead"
            )
    assert step == len(batches) - 1


def test_an_error_in_the_thread_reaches_the_user(monkeypatch):
    monkeypatch.setattr(module, "RESIDENT", 0.0)
    batches = Batches(packed(), batch_size=4, seed=0, shuffle=False, device="cpu")

    def fail(*_):
        raise MemoryError("no more")

    monkeypatch.setattr(batches, "_collect", fail)
    with pytest.raises(MemoryError, match="no more"):
        next(batches.epoch(0))
    assert "batches" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_reach_the_gpu(make, monkeypatch):
    there = make(device="cuda", count=250, batch_size=64)
    for batch in there.epoch(0):
        assert batch.images.is_cuda
        assert torch.equal(batch.images[:, 0, 0, 0].long() * 10, batch.targets["label"])
