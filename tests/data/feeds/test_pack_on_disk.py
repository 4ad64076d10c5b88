"""Packed images on disk: several processes, killed ones, disks that are full or read-only, the folder."""

import contextlib
import errno
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.counted_pictures import Pictures, noise, packed
from support.processes import started

from vitrail.data.feeds.packing import default_folder
from vitrail.errors import DataError

PROCESS = """
import sys, time, warnings
from pathlib import Path
warnings.simplefilter("error")
sys.path.insert(0, {tests!r})
from support.counted_pictures import Pictures, noise, packed

class Slow(Pictures):
    def read(self, index):
        time.sleep(0.02)
        return super().read(index)

dataset = Slow(noise(60))
print("ready", flush=True)
sys.stdin.readline()
result = packed(dataset, Path({folder!r}))
assert (result.images == dataset.images).all()
print(dataset.reads)
"""


@contextlib.contextmanager
def begun(folder):
    program = PROCESS.format(tests=str(Path(__file__).parents[2]), folder=str(folder))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with started([sys.executable, "-c", program], **pipes) as process:
        yield process


def test_two_processes_that_start_together_decode_once(tmp_path):
    with begun(tmp_path) as one, begun(tmp_path) as two:
        processes = one, two
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
        reads = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(reads) == [0, 60]


def test_a_killed_process_leaves_nothing_in_the_way(tmp_path):
    with begun(tmp_path) as process:
        process.stdout.readline()
        process.stdin.write("go\n")
        while not list(tmp_path.glob(".*.vitrail-new")):
            time.sleep(0.01)
        process.kill()
        process.communicate()
    assert list(tmp_path.glob("*.pack")) == []
    dataset = Pictures(noise(60))
    assert torch.equal(packed(dataset, tmp_path).images, dataset.images)
    assert list(tmp_path.glob(".*.vitrail-new")) == []


def test_without_locks_all_may_go_on(tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert len(packed(Pictures(noise(3)), tmp_path)) == 3
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert len(packed(Pictures(noise(3), name="other"), tmp_path)) == 3


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/below.*VITRAIL_CACHE"):
        packed(Pictures(noise(3)), tmp_path / "file" / "below")


def test_a_finished_cache_in_a_folder_without_write_access_serves(tmp_path, monkeypatch):
    packed(Pictures(noise(3)), tmp_path)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(packed(Pictures(noise(3)), tmp_path)) == 3
    with pytest.raises(DataError, match="Permission denied"):
        packed(Pictures(noise(3), name="new"), tmp_path)


def test_too_little_room_is_said_before_the_work(tmp_path, monkeypatch):
    dataset = Pictures(noise(30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(DataError, match=r"10 B.*12.7 KiB"):
        packed(dataset, tmp_path)
    assert dataset.reads == 0


def test_a_disk_that_fills_up_leaves_no_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    dataset = Pictures(noise(2000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DataError, match="written"):
            packed(dataset, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
    assert len(packed(dataset, tmp_path)) == 2000


def test_the_folder_is_chosen_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "a"))
    assert default_folder() == tmp_path / "a" / "packed"
    packed(Pictures(noise(3)), None)
    assert len(list((tmp_path / "a" / "packed").glob("*.pack"))) == 1
    monkeypatch.delenv("VITRAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_folder() == tmp_path / "b" / "vitrail" / "packed"
