"""A score on images that a run has met is told for what it is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.coloured import coloured_photos
from support.run_folder import record

from vitrail.data.sources.opening import open_data, open_whole
from vitrail.runs.leakage import trained_on


@pytest.fixture(scope="module")
def _photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def photos(_photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_photos, tmp_path / "photos"))


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., str]:
    """A run's folder that says what it was trained on."""

    def write(source: str | Path, /, val: str | float | None = None, **more: Any) -> str:
        splits = open_data(source, val=val)
        about = {"source": str(source), "val": val, "learned": splits.train.fingerprint} | more
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        record(**about).write(run)
        return str(run)

    return write


def told(run: str, source: str | Path) -> str | None:
    return trained_on(run, str(source), open_whole(source))


def test_all_images_of_a_folder_that_was_split(photos: Path, begin: Callable[..., str], tmp_path: Path) -> None:
    run = begin(photos)
    says = f"of these 90 images, {run} was trained on 81 and chose its best epoch by 9: "
    assert str(told(run, photos)).startswith(says)
    assert "held-out" in str(told(run, photos))
    (tmp_path / "link").symlink_to(photos)
    (tmp_path / "table.csv").write_text("path,label\nphotos/red/1.png,red\nphotos/blue/1.png,blue\n")
    assert str(told(run, tmp_path / "table.csv")).startswith(f"of these 2 images, {run} ")
    assert told(run, tmp_path / "link") == told(run, f"{photos}/../photos/") == told(run, photos)


def test_images_that_a_table_named(photos: Path, begin: Callable[..., str], tmp_path: Path) -> None:
    names = [file.relative_to(tmp_path) for file in sorted(photos.glob("*/*.png"))]
    table, copy = tmp_path / "single.csv", tmp_path / "copy.csv"
    table.write_text("path,label\n" + "".join(f"{name},{name.parent.name}\n" for name in names))
    shutil.copy(table, copy)
    run = begin(table)
    says = f"of these 90 images, {run} was trained on 81 and chose its best epoch by 9: "
    assert str(told(run, table)).startswith(says)
    assert told(run, copy) == told(run, photos) == told(run, table)
    other = shutil.copytree(photos, tmp_path / "photos-of-others")
    assert told(run, other) is None
    table.write_text("path,label\n")  # what cannot be read may have named them, or not
    assert told(run, other) is told(run, copy) is None


def test_new_images_need_no_word(photos: Path, begin: Callable[..., str], tmp_path: Path) -> None:
    other = shutil.copytree(photos, tmp_path / "photos-of-others")
    assert told(begin(photos), other) is None
    assert told(begin("demo"), "demo") is None  # the test part
    (tmp_path / "bare").mkdir()
    assert told(str(tmp_path / "bare"), photos) is None  # no run left it


def test_images_that_only_chose_the_best_epoch(photos: Path, begin: Callable[..., str], tmp_path: Path) -> None:
    other = shutil.copytree(photos, tmp_path / "other")
    run = begin(other, val=str(photos))
    assert str(told(run, photos)).startswith(f"of these 90 images, {run} chose its best epoch by 90: ")


def test_what_cannot_be_counted_is_told_as_that(photos: Path, begin: Callable[..., str]) -> None:
    run = begin(photos)
    os.utime(photos / "red" / "3.png", (0, 0))
    assert "changed" in str(told(run, photos))
    assert "changed" in str(told(begin(photos, learned=None), photos))  # as older runs are
    other = shutil.copytree(photos, photos.parent / "other")
    run = begin(photos, val=str(other))
    shutil.rmtree(other)
    assert "cannot be read" in str(told(run, photos))
    run = begin("demo", source="elsewhere/photos")
    assert "elsewhere/photos" in str(told(run, photos))
