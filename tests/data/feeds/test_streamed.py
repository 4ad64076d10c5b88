"""Streamed images: the bits, order and batches of packed ones, from any point, on any rank, with broken files."""

import gc
import os
import signal
import sys
import tarfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.numbered_images import Failing, Numbered, Unreadable
from support.processes import run, started, wait_until_gone

from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset, Subset
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.feed import AHEAD
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.feeds.packing import pack
from vitrail.data.feeds.streamed import Streamed, StreamedBatches, default_workers
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import read_folder
from vitrail.data.sources.shards import read_shards
from vitrail.data.sources.table import read_table
from vitrail.errors import DataError, Notice

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="images are streamed on systems with fork"),
]
COUNT = 40
MODEL = Preprocess(image_size=(14, 14))
TRAINING = {"batch_size": 8, "seed": 3, "shuffle": True, "device": "cpu", "drop_last": True}
EVALUATION = {"batch_size": 7, "seed": 0, "shuffle": False, "device": "cpu"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG and PNG files of many sizes, colour and grey, in two folders; and a table of them."""
    root, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["path,label"]
    for number in range(COUNT):
        height, width = draw.integers(12, 40, 2)
        rough = Image.fromarray(draw.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((int(width), int(height)))
        name = f"{'cat' if number % 2 else 'dog'}/{number}.{'jpg' if number % 3 else 'png'}"
        (root / name).parent.mkdir(exist_ok=True)
        (rough.convert("L") if number % 5 == 0 else rough).save(root / name)
        lines.append(f"{name},{number % 2}")
    (root / "all.csv").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="module")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in three tar files."""
    folder = tmp_path_factory.mktemp("shards")
    files = sorted(photos.glob("*/*.*"))
    for part in range(3):
        with tarfile.open(folder / f"part-{part}.tar", "w") as tar:
            for file in files[part::3]:
                (folder / "label.cls").write_text(str(int(file.parent.name == "dog")))
                tar.add(file, file.name)
                tar.add(folder / "label.cls", f"{file.stem}.cls")
    (folder / "label.cls").unlink()
    return folder


def take_over(feed: StreamedBatches, other: StreamedBatches) -> StreamedBatches:
    """The feed with the processes of another that is done: to start them takes more than a second."""
    feed._pool, other._pool = other._pool, None
    return feed


def feeds(dataset: Dataset, folder: Path, options: dict = TRAINING, *, workers: int = 2, **more):
    """The packed and the streamed feed of a data set, stored as training stores it."""
    fit = stored_as(dataset, MODEL, cropped=options["shuffle"])
    streamed = Streamed(dataset, fit, workers=workers)
    return Batches(pack(dataset, fit, folder=folder), **options | more), StreamedBatches(streamed, **options | more)


def same(packed, streamed) -> int:
    """How many batches there were, after a look that all are equal bit by bit."""
    count = 0
    for one, other in zip(packed, streamed, strict=True):
        assert one.targets.keys() == other.targets.keys()
        assert all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))
        count += 1
    return count


def children() -> set[int]:
    """The processes that this one has started, zombies too."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().rsplit(")", 1)
        except OSError:  # it has ended meanwhile
            continue
        if int(rest.split()[1]) == os.getpid():
            found.add(int(number.split()[0]))
    return found


@pytest.fixture
def no_process_left():
    """All processes that a test starts have ended when it is over."""
    before = children()
    yield
    gc.collect()
    assert children() <= before
    assert "batches" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("source", ["folder", "table", "shards"])
def test_batches_are_those_of_packed_images_bit_by_bit(photos, shards, tmp_path, source):
    read = {"folder": lambda: read_folder(photos), "table": lambda: read_table(photos / "all.csv")}
    packed, streamed = feeds(read.get(source, lambda: read_shards(shards))().train, tmp_path)
    aspects = streamed.data.aspects()
    for epoch in (0, 1):  # the second with the processes of the first
        assert same(packed.epoch(epoch), streamed.epoch(epoch)) == 5
    assert torch.equal(aspects, packed.data.aspects())
    assert aspects.unique().numel() > 10
    assert streamed.waited > 0
    assert (len(streamed.data), streamed.data.schema) == (COUNT, packed.data.schema)


@pytest.mark.usefixtures("no_process_left")
def test_an_epoch_goes_on_in_the_middle_on_every_rank(photos, tmp_path):
    whole = read_folder(photos).train
    packed, streamed = feeds(whole, tmp_path, rank=0, world=2, workers=1)
    assert same(packed.epoch(4, start=2), streamed.epoch(4, start=2)) == 3
    first = streamed
    packed, streamed = feeds(whole, tmp_path, rank=1, world=2, workers=1)
    assert same(packed.epoch(4, start=2), take_over(streamed, first).epoch(4, start=2)) == 3
    read = [len(batch.ids) for batch in streamed.epoch(4, start=4)]
    assert read == [4]  # of 8: a rank decodes its part only


@pytest.mark.usefixtures("no_process_left")
def test_evaluation_sees_every_image_once_by_processes_that_end_with_the_feed(photos, tmp_path):
    before = children()
    packed, streamed = feeds(Subset(read_folder(photos).train, [5, 1, 30, 8, 9, 12, 2, 20, 33]), tmp_path, EVALUATION)
    assert same(packed.epoch(0), streamed.epoch(0)) == 2
    first = children()
    assert same(packed.epoch(0), streamed.epoch(0)) == 2
    assert children() == first
    images = streamed.data
    del streamed
    assert children() == before
    assert list(StreamedBatches(images, **EVALUATION, rank=0, world=8).epoch(0))[1].images.shape == (
        0,
        3,
        14,
        14,
    )


def numbered(dataset: Numbered, options: dict = TRAINING, **more) -> StreamedBatches:
    data = Streamed(dataset, Preprocess(image_size=(4, 4)), tally=Tally(1000), workers=2)
    return StreamedBatches(data, **options | more)


def ids(feed: StreamedBatches, epoch: int = 0, start: int = 0) -> list[list[int]]:
    found = []
    for batch in feed.epoch(epoch, start):
        assert torch.equal(batch.images, batch.ids.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4))
        found.append(batch.ids.tolist())
    return found


@pytest.mark.usefixtures("no_process_left")
def test_a_broken_image_is_replaced_by_the_next_of_the_order_that_can_be_read():
    feed = numbered(Numbered(42))
    order = feed.order(7).tolist()
    broken = {order[0], order[19], order[20], order[39], order[41]}  # 40 and 41 are in no batch
    expected = order[:40]
    expected[0], expected[19], expected[20], expected[39] = order[1], order[21], order[21], order[40]
    feed = numbered(Numbered(42, broken))
    with pytest.warns(Notice, match="broken"):
        found = ids(feed, 7)
    assert [number for batch in found for number in batch] == expected
    assert len(feed.data.skipped) == 4  # nobody has looked at the last one
    assert ids(feed, 7) == found
    with warnings.catch_warnings(action="ignore"):
        late = take_over(numbered(Numbered(42, broken)), feed)
        assert ids(late, 7, start=3) == found[3:]
        first, second = (numbered(Numbered(42, broken), rank=rank, world=2) for rank in (0, 1))
        ranks = [ids(take_over(first, late), 7), ids(take_over(second, first), 7)]
    assert [one + other for one, other in zip(*ranks, strict=True)] == found


@pytest.mark.usefixtures("no_process_left")
def test_a_broken_image_is_left_out_of_evaluation_and_too_many_stop_it():
    with pytest.warns(Notice, match="broken"):
        feed = numbered(Numbered(20, broken=(0, 7, 13)), EVALUATION)
        assert ids(feed) == [[1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 12], [14, 15, 16, 17, 18, 19]]
    assert [name for name, _ in feed.data.skipped] == ["image 0", "image 7", "image 13"]
    assert len(feed.data.ids) == 17
    with warnings.catch_warnings(action="ignore"), pytest.raises(DataError, match="limit"):
        ids(numbered(Numbered(100, broken=range(20)), EVALUATION))
    nothing = Streamed(Numbered(8, range(8)), MODEL, tally=Tally(1000), workers=1)
    with warnings.catch_warnings(action="ignore"), pytest.raises(DataError, match="no image"):
        next(StreamedBatches(nothing, **TRAINING).epoch(0))


@pytest.mark.usefixtures("no_process_left")
def test_a_killed_process_is_an_error_that_says_so():
    with pytest.raises(DataError, match="signal 9"):
        ids(numbered(Numbered(40, deadly=13)))


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(("dataset", "word"), [(Failing(8), "ZeroDivisionError"), (Unreadable(8), "not_there")])
def test_other_errors_in_a_process_are_told(dataset, word):
    with pytest.raises(DataError, match=word):
        ids(numbered(dataset))


@pytest.mark.usefixtures("no_process_left")
def test_what_cannot_be_pickled_is_refused():
    dataset = Numbered(8)
    dataset.lock = threading.Lock()
    with pytest.raises(DataError, match="pickled"):
        ids(numbered(dataset))


@pytest.mark.usefixtures("no_process_left")
def test_memory_is_bounded_and_giving_up_ends_the_processes():
    feed = numbered(Numbered(4000), batch_size=8)
    opened = []
    keep = feed._open
    feed._open = lambda span: opened.append(span) or keep(span)
    batches = feed.epoch(0)
    next(batches)
    time.sleep(0.5)
    assert 2 <= len(opened) <= 1 + AHEAD + 1 + 4  # given out, ready, about to be; and 4 occupy two processes
    batches.close()
    again = ids(feed, start=490)
    assert len(again) == 10


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores SIGINT
sys.path[:0] = {tests!r}
from support.numbered_images import Numbered
from test_streamed import numbered
batches = numbered(Numbered(4000, slow=0.01)).epoch(0)  # no main guard: nothing here may run again in a worker
next(batches)
print("ready", flush=True)
{then}
"""


def script(then: str) -> list[str]:
    tests = [str(Path(__file__).parents[up]) for up in (0, 2)]
    return [sys.executable, "-c", SCRIPT.format(tests=tests, then=then)]


def group_of(process) -> list[int]:
    """The children of a process and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().rsplit(")", 1)
        except OSError:
            continue
        parents[int(number.split()[0])] = int(rest.split()[1])
    first = [one for one, parent in parents.items() if parent == process.pid]
    return first + [one for one, parent in parents.items() if parent in first]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_no_process_outlives_the_program(number):
    with started(script("time.sleep(60)"), stdout=-1, stderr=-3, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        working = group_of(process)
        assert len(working) == 3
        process.send_signal(number)
        process.wait(20)
        wait_until_gone(working)


def test_a_program_may_simply_end():
    ended = run(script(""), timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_cores_are_shared_by_the_processes_of_a_run(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert default_workers() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert default_workers() == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("no_process_left")
def test_batches_reach_the_gpu(photos, tmp_path):
    packed, streamed = feeds(read_folder(photos).train, tmp_path, device="cuda")
    aspects = streamed.data.aspects("cuda")
    assert same(packed.epoch(0), streamed.epoch(0)) == 5
    assert torch.equal(aspects, packed.data.aspects("cuda"))
