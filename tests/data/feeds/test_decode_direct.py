"""Processes that write images into files by themselves: the right rows, broken images, errors, and no one left."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from support.numbered_images import Failing, Numbered
from support.processes import started, wait_until_gone

from vitrail.data.feeds.decode_direct import DirectPool, Into
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="images are decoded by processes on systems with fork"),
]
LARGE, SMALL = Preprocess(image_size=(4, 4)), Preprocess(image_size=(2, 2))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two files that can be written."""
    found = tuple(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("large", "small"))
    yield found
    for file in found:
        os.close(file)


def rows(file: int, size: int) -> torch.Tensor:
    data = bytearray(os.pread(file, 1 << 20, 0))
    return torch.frombuffer(data, dtype=torch.uint8).view(-1, 3 * size * size)


def test_each_image_is_in_its_row_of_each_file_that_wants_it(files: tuple[int, int]) -> None:
    large, small = files
    wanted = [(Into(LARGE, None), large), (Into(SMALL, {7: 0, 3: 1}), small)]
    order = [29, *range(29)]
    pool, found = DirectPool(Numbered(30, broken=[4]), order, wanted, workers=2), {}
    for answers in pool.done():
        assert not found.keys() & answers.keys()
        found |= answers
    pool.close()
    assert sorted(found) == list(range(30))
    assert found.pop(4) == "image 4 is broken"
    assert set(found.values()) == {(4, 4)}
    expected = torch.arange(30, dtype=torch.uint8)
    expected[4] = 0
    assert torch.equal(rows(large, 4), expected[:, None].expand(-1, 48))
    assert rows(small, 2)[:, 0].tolist() == [7, 3]


def test_more_processes_than_work_is_fine(files: tuple[int, int]) -> None:
    pool = DirectPool(Numbered(3), [2, 0, 1], [(Into(LARGE, None), files[0])], workers=4)
    assert sum(map(len, pool.done())) == 3
    pool.close()


def test_a_bug_and_a_crash_are_errors_that_say_so(files: tuple[int, int]) -> None:
    for data, word in [(Failing(20), "ZeroDivisionError"), (Numbered(20, deadly=9), "signal 9")]:
        pool = DirectPool(data, range(20), [(Into(LARGE, None), files[0])], workers=2)
        with pytest.raises(DataError, match=word):
            list(pool.done())
        pool.close()


def test_a_file_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = os.open(tmp_path / "file", os.O_RDONLY)
    pool = DirectPool(Numbered(20), range(20), [(Into(LARGE, None), file)], workers=1)
    with pytest.raises(OSError, match="descriptor"):
        list(pool.done())
    pool.close()
    os.close(file)


SCRIPT = """
import os, sys, time
sys.path.insert(0, {tests!r})
from support.numbered_images import Numbered
from vitrail.data.feeds.decode_direct import DirectPool, Into
from vitrail.data.preprocess import Preprocess
file = os.open({file!r}, os.O_RDWR | os.O_CREAT)
data = Numbered(4000, slow=0.01)
pool = DirectPool(data, range(4000), [(Into(Preprocess(image_size=(4, 4)), None), file)], workers=2)
next(pool.done())
print(pool._crew._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_no_process_outlives_the_program(tmp_path: Path, number: int) -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parents[2]), file=str(tmp_path / "file"))
    with started([sys.executable, "-c", script], stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        working = [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]
        assert len(working) == 3
        process.send_signal(number)
        process.wait(20)
        wait_until_gone(working)
