"""What may be meant by a path that is not there."""

from pathlib import Path

import pytest

from vitrail.suggest import nearest_path, suggest_path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("photos/cat", "runs/demo", "runs/other", ".photo", "many/" + "x/" * 3):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "photo.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("photo/", "photos"),
        ("./PHOTOS", "photos"),
        ("runs/dmeo", "runs/demo"),
        ("run/demo", "runs/demo"),
        ("rusn/othr", "runs/other"),
        ("runs/oth", "runs/other"),
        ("photos/../runs/dem", "photos/../runs/demo"),
        ("runs/aa", None),
        ("nowhere/demo", None),
        ("packagd", "packaged"),
        ("runs/packagd", None),
        ("photo.txt/cat", "photos/cat"),
    ],
)
def test_each_step_is_there_or_near(path: str, meant: str | None, place: Path) -> None:
    assert nearest_path(Path(path), fits=Path.is_dir, names=["packaged"]) == meant


def test_an_absolute_path_stays_one(place: Path) -> None:
    assert nearest_path(place / "run" / "demp", fits=Path.is_dir) == str(place / "runs" / "demo")


def test_where_none_is_near_the_folder_says_what_it_holds(place: Path) -> None:
    assert suggest_path(Path("runs/demp"), fits=Path.is_dir) == "did you mean 'runs/demo'?"
    assert suggest_path(Path("runs/aa"), fits=Path.is_dir) == "runs contains demo, other"
    assert suggest_path(Path("runs/aa"), fits=Path.is_file) is None
    assert suggest_path(Path("aa"), fits=Path.is_dir) is None, "nobody asked what lies in the working folder"
    for letter in "abcdef":
        (place / "many" / letter).mkdir()
    assert suggest_path(Path("many/zzz"), fits=Path.is_dir) == "many contains a, b, c, d, e, …"
