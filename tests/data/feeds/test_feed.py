"""What all feeds share: an order that (seed, epoch) alone decides, cut into batches and the parts of ranks."""

import threading
import time
from collections.abc import Generator, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from vitrail.data.dataset import Batch
from vitrail.data.feeds.feed import Feed, ImageSet, aspect_of, geometry
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError

COUNT = 23
GOLDEN = [5, 6, 4, 2, 1, 3, 7, 0]  # of seed 5 in epoch 2: another order would break every resumed run


class Counted(ImageSet):
    name, schema, targets, skipped = "numbers", {}, {}, ()

    def __init__(self, count: int, stored: Preprocess = Preprocess()) -> None:  # noqa: B008  (immutable)
        self.count, self.stored = count, stored

    def __len__(self) -> int:
        return self.count

    def aspects(self, device: torch.device | str = "cpu") -> None:
        return None

    def checksum(self) -> str:
        return str(self.count)


class Numbers(Feed):
    """Batches of ids without pixels; now and then it is not ready."""

    def _batches(self, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        return self._ahead(self._made(order, spans))

    def _made(self, order: Tensor, spans: Sequence[range]) -> Generator[Batch | None, None, None]:
        try:
            for span in spans:
                yield None
                ids = order[span.start : span.stop]
                yield Batch(torch.empty(len(ids), 0), {}, ids)
        finally:
            self.ended = threading.current_thread().name


def feed(count: int = COUNT, **options) -> Numbers:
    return Numbers(Counted(count), **{"batch_size": 4, "seed": 0, "shuffle": True, "device": "cpu"} | options)


def ids(made: Feed, epoch: int = 0, start: int = 0) -> list[list[int]]:
    return [batch.ids.tolist() for batch in made.epoch(epoch, start)]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    first = ids(feed(), epoch=3)
    assert first == ids(feed(), epoch=3)
    assert first != ids(feed(), epoch=4)
    assert first != ids(feed(seed=1), epoch=3)
    assert sorted(number for batch in first for number in batch) == list(range(COUNT))
    again = feed()
    ids(again, epoch=9)
    torch.manual_seed(99)
    assert first == ids(again, epoch=3)
    assert ids(again, epoch=3, start=2) == first[2:]
    assert ids(feed(shuffle=False, count=5)) == [[0, 1, 2, 3], [4]]


def test_order_is_the_same_for_ever() -> None:
    assert feed(8, seed=5).order(2).tolist() == GOLDEN


def test_first_images_are_spread_evenly() -> None:
    firsts = [int(feed(5).order(epoch)[0]) for epoch in range(500)]
    assert torch.bincount(torch.tensor(firsts), minlength=5).min() > 70


def test_the_source_of_batches_is_closed_by_its_thread_whenever_nobody_wants_more() -> None:
    made = feed(4000)
    batches = made.epoch(0)
    next(batches)
    batches.close()
    assert made.ended == "batches"
    assert "batches" not in {thread.name for thread in threading.enumerate()}
    del made.ended
    batches = made.epoch(1)
    next(batches)
    del batches  # as at the end of a function that an error has left
    assert made.ended == "batches"


def test_waiting_is_measured() -> None:
    class Slow(Numbers):
        def _made(self, order: Tensor, spans: Sequence[range]) -> Generator[Batch | None, None, None]:
            time.sleep(0.05)
            yield from super()._made(order, spans)

    made = Slow(Counted(8), batch_size=4, seed=0, shuffle=False, device="cpu")
    ids(made)
    assert made.waited > 0.04


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size .*0"),
        ({"rank": 2, "world": 2}, r"rank.* 2"),
        ({"batch_size": 24, "drop_last": True}, r"23 images.* 24"),
        ({"batch_size": 18, "drop_last": True, "world": 4}, "16"),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        feed(**options)


def test_an_epoch_cannot_start_after_its_end() -> None:
    with pytest.raises(ConfigError, match="6 batches"):
        feed().epoch(0, start=7)


def test_stored_images_need_the_rest_of_the_preprocessing_only() -> None:
    model = Preprocess(image_size=(8, 8), mean=(0.1,), std=(0.2,), channel_order="bgr")
    assert geometry(model) == geometry(Preprocess(image_size=(8, 8)))
    assert Counted(3, geometry(model)).prepare(model) == model.normalise
    assert Counted(3, Preprocess(image_size=(9, 9))).prepare(model) == model


def test_aspects_say_how_much_wider_images_were_than_they_are_stored() -> None:
    sizes = torch.tensor([[30, 40], [40, 30], [20, 20]])
    assert torch.allclose(aspect_of(sizes, (64, 64)), torch.tensor([4 / 3, 3 / 4, 1]))
    assert torch.allclose(aspect_of(sizes, (30, 40)), torch.tensor([1, 9 / 16, 3 / 4]))
