import hashlib

import pytest

from vitrail.checksums import FILE, check_file, read_checksums, remove_checksums, write_checksums
from vitrail.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"one")
    (tmp_path / "b.bin").write_bytes(b"two")
    write_checksums(tmp_path, ["a.bin", "b.bin", "gone.bin"])
    return tmp_path


def test_the_file_is_that_of_sha256sum(folder):
    digest = hashlib.sha256(b"one").hexdigest()
    assert (folder / FILE).read_text().splitlines()[0] == f"{digest}  a.bin"
    assert set(read_checksums(folder)) == {"a.bin", "b.bin"}


def test_a_file_is_checked_by_its_content_or_its_bytes(folder):
    assert check_file(folder / "a.bin")
    assert check_file(folder / "a.bin", data=b"one")
    (folder / "c.bin").write_bytes(b"")
    assert not check_file(folder / "c.bin")  # not listed


def test_a_changed_file_is_refused_with_a_way_on(folder):
    (folder / "a.bin").write_bytes(b"One")
    with pytest.raises(CheckpointError, match="--accept"):
        check_file(folder / "a.bin")


def test_those_of_other_files_are_kept(folder):
    (folder / "c.bin").write_bytes(b"three")
    (folder / "b.bin").unlink()
    write_checksums(folder, ["c.bin"], kept=read_checksums(folder))
    assert set(read_checksums(folder)) == {"a.bin", "c.bin"}


def test_without_the_file_nothing_is_known(folder):
    remove_checksums(folder)
    remove_checksums(folder)
    assert read_checksums(folder) == {}
    assert not check_file(folder / "a.bin")


@pytest.mark.parametrize("text", ["x", "0" * 64 + "  ../a\n", "0" * 64 + "  a\n" + "1" * 64 + "  a\n", "\x00" * 9])
def test_a_damaged_file_is_a_sentence(folder, text):
    (folder / FILE).write_text(text)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checksums(folder)
