"""Pictures are found in folders, tars and tables, and answered under their names."""

import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from vitrail.deploy.engine import TorchEngine
from vitrail.deploy.pictures import answer_pictures, find_pictures
from vitrail.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures, one of them broken, as files, in a tar, and in a table."""
    place = tmp_path_factory.mktemp("pictures")
    for name, grey in (("a.png", 20), ("b.png", 220)):
        Image.new("L", (9, 7), grey).save(place / name)
    (place / "c.png").write_bytes(b"no picture")
    with tarfile.open(place / "all.tar", "w") as tar:
        for name in ("b.png", "c.png", "a.png"):
            tar.add(place / name, arcname=f"inside/{name}")
    (place / "list.csv").write_text("number,Path\n1,b.png\n2,a.png\n3,missing.png\n")
    (place / "list.tsv").write_text("path\tnumber\na.png\t1\n")
    return place


def names(*paths: Path) -> list[str]:
    return [picture.name for picture in find_pictures(paths)]


def test_every_kind_of_place(folder):
    def here(*files):
        return [str(folder / file) for file in files]

    assert names(folder) == here("a.png", "b.png", "c.png")
    assert names(folder / "all.tar") == here("all.tar/inside/b.png", "all.tar/inside/c.png", "all.tar/inside/a.png")
    assert names(folder / "list.csv") == here("b.png", "a.png", "missing.png")
    assert names(folder / "list.tsv", folder / "gone.png") == here("a.png", "gone.png")


def test_answers_do_not_depend_on_where_a_picture_lies(folder, model):
    engine = TorchEngine("eager", model)
    files = {Path(found.path).name: found for found in answer_pictures(engine, find_pictures([folder]), together=2)}
    assert "cannot be decoded" in files["c.png"].error
    assert files["a.png"].answers != files["b.png"].answers
    assert [len(found.answers) for found in answer_pictures(engine, find_pictures([folder / "a.png"]), top=2)] == [2]
    for found in answer_pictures(engine, find_pictures([folder / "all.tar"])):
        same = files[Path(found.path).name]
        assert [answer.label for answer in found.answers] == [answer.label for answer in same.answers]
        torch.testing.assert_close(
            [answer.probability for answer in found.answers], [answer.probability for answer in same.answers]
        )
    told = list(answer_pictures(engine, find_pictures([folder / "list.csv"])))
    assert [found.error is None for found in told] == [True, True, False]
    assert "No such file" in told[2].error


def test_bad_places_are_one_sentence(folder, model, tmp_path):
    (tmp_path / "odd.tar").write_bytes(b"x" * 600)
    with pytest.raises(DataError, match=r"odd\.tar is no tar"):
        names(tmp_path / "odd.tar")
    (tmp_path / "odd.csv").write_text("name,age\nx,3\n")
    with pytest.raises(DataError, match="no column of image paths"):
        names(tmp_path / "odd.csv")
    (tmp_path / "odd.csv").write_text("path,age\n,3\n")
    with pytest.raises(DataError, match="line 2"):
        names(tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match="top is 0"):
        list(answer_pictures(TorchEngine("eager", model), find_pictures([folder]), top=0))
