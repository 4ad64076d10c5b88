"""Paths that cannot be written are found before any work is done."""

from pathlib import Path

import pytest

from vitrail.errors import DataError
from vitrail.training.writable import check_file, check_folder, write_barrier


def test_a_place_that_is_not_there_yet_is_as_good_as_what_it_will_lie_in(tmp_path: Path) -> None:
    assert write_barrier(tmp_path / "new" / "deeper") is None
    check_file(tmp_path / "new" / "page.html")
    check_folder(tmp_path / "new")
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert write_barrier(Path("/proc/new")) == "cannot write to /proc (No such file or directory)"
    for check, place in ((check_file, file / "page.html"), (check_folder, file / "run"), (check_folder, file)):
        with pytest.raises(DataError, match=rf"{place} cannot be written: .* {file} "):
            check(place)
    with pytest.raises(DataError, match="folder"):
        check_file(tmp_path)
