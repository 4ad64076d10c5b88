"""Images are found in folders, tars and tables, and predicted under their names."""

import csv
import json
import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image
from support.small_detector import detector, picture_file

from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.bulk.image_files import find_images, predict_images
from vitrail.deploy.bulk.prediction_table import bulk
from vitrail.deploy.bulk.table_files import row_of
from vitrail.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images, one of them broken, as files, in a tar, and in a table."""
    path = tmp_path_factory.mktemp("images")
    for name, grey in (("a.png", 20), ("b.png", 220)):
        Image.new("L", (9, 7), grey).save(path / name)
    (path / "c.png").write_bytes(b"no image")
    with tarfile.open(path / "all.tar", "w") as tar:
        for name in ("b.png", "c.png", "a.png"):
            tar.add(path / name, arcname=f"inside/{name}")
    (path / "list.csv").write_text("number,Path\n1,b.png\n2,a.png\n3,missing.png\n")
    (path / "list.tsv").write_text("path\tnumber\na.png\t1\n")
    return path


def names(*paths: Path) -> list[str]:
    return [image.name for image in find_images(paths)]


def test_every_kind_of_source(folder):
    def here(*files):
        return [str(folder / file) for file in files]

    assert names(folder) == here("a.png", "b.png", "c.png")
    assert names(folder / "all.tar") == here("all.tar/inside/b.png", "all.tar/inside/c.png", "all.tar/inside/a.png")
    assert names(folder / "list.csv") == here("b.png", "a.png", "missing.png")
    assert names(folder / "list.tsv", folder / "gone.png") == here("a.png", "gone.png")


def test_answers_do_not_depend_on_where_an_image_is(folder, model):
    engine = TorchEngine(model)
    files = {Path(found.path).name: found for found in predict_images(engine, find_images([folder]), batch=2)}
    assert "cannot be decoded" in files["c.png"].error
    assert files["a.png"].answer != files["b.png"].answer
    assert [
        len(found.answer.candidates) for found in predict_images(engine, find_images([folder / "a.png"]), top=2)
    ] == [2]
    for found in predict_images(engine, find_images([folder / "all.tar"])):
        same = files[Path(found.path).name]
        assert (found.answer is None) == (same.answer is None)
        if same.answer is not None:
            for ours, theirs in zip(found.answer.candidates, same.answer.candidates, strict=True):
                assert ours.label == theirs.label
                assert ours.probability == pytest.approx(theirs.probability, abs=1e-5)
    found = list(predict_images(engine, find_images([folder / "list.csv"])))
    assert [one.error is None for one in found] == [True, True, False]
    assert "No such file" in found[2].error


def test_bad_paths_are_refused(folder, model, tmp_path):
    (tmp_path / "odd.tar").write_bytes(b"x" * 600)
    with pytest.raises(DataError, match=r"odd\.tar"):
        names(tmp_path / "odd.tar")
    (tmp_path / "odd.csv").write_text("name,age\nx,3\n")
    with pytest.raises(DataError, match="column"):
        names(tmp_path / "odd.csv")
    (tmp_path / "odd.csv").write_text("path,age\n,3\n")
    with pytest.raises(DataError, match="line 2"):
        names(tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match="top"):
        list(predict_images(TorchEngine(model), find_images([folder]), top=0))


def test_only_regular_files_are_read(folder, model, tmp_path):
    os.mkfifo(tmp_path / "x.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "link.png").symlink_to(folder / "a.png")
    (tmp_path / "list.csv").write_text(f"path\n/dev/zero\nx.png\n{folder}/a.png\n")
    os.mkfifo(tmp_path / "pipe.tar")
    found = list(
        predict_images(TorchEngine(model), find_images([tmp_path, tmp_path / "list.csv", tmp_path / "pipe.tar"]))
    )
    readable = [Path(one.path).name for one in found if one.error is None]
    assert readable == ["link.png", "a.png"]
    assert all("regular" in one.error for one in found if one.error is not None)


def test_a_regression_predicts_numbers(folder, numbers):
    (found,) = predict_images(TorchEngine(numbers), find_images([folder / "a.png"]))
    assert list(found.answer.row()) == list(numbers.task.columns)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_boxes_in_a_table_are_those_of_the_picture(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    found, file = detector(), picture_file(tmp_path)
    engine, out = TorchEngine(found), tmp_path / f"table{suffix}"

    def rows(images):
        return (row_of(one, engine.task.columns) for one in predict_images(engine, images))

    bulk(find_images([file]), out, rows, columns=engine.task.columns, model="one")
    (expected,) = found.predict(file)
    (row,) = read_rows(out)
    boxes = row["boxes"] if suffix == ".jsonl" else json.loads(row["boxes"])
    assert boxes == expected.answer.row()["boxes"]
    assert max(box[5] for box in boxes) > 64  # further down than the model's input reaches


def read_rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
