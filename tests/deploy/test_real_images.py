"""Which images an export and a benchmark use."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.run_folder import run_folder
from support.shipped import trained
from support.small_detector import detector, picture_file
from support.small_tasks import class_schema

from vitrail.data.sources.embedded import read_embedded
from vitrail.deploy.real_images import images_for_bench, images_for_export, read_images
from vitrail.errors import ConfigError, DataError, Notice
from vitrail.runs.trained import open_model
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.task import Task


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(12):
        Image.new("L", (36, 40), 20 * number).save(folder / f"{number:02}.png")
    return folder


def shapes(images: list) -> list[tuple[int, ...]]:
    return [tuple(image.shape) for image in images]


def named(*classes: str) -> Task:
    return ClassifyConfig().build(None, class_schema(classes))


def test_images_of_a_folder_are_spread_and_broken_ones_left_out(photos, tmp_path):
    assert [int(image[0, 0, 0]) for image in read_images(str(photos), 3)] == [0, 80, 160]
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="read"):
        read_images(str(tmp_path), 3)
    Image.new("L", (9, 7)).save(tmp_path / "b.png")
    assert shapes(read_images(str(tmp_path), 3)) == [(1, 7, 9)]
    with pytest.raises(ConfigError, match="count"):
        read_images(str(tmp_path), 0)


def test_a_folder_of_arrays_gives_the_arrays(tmp_path):
    np.save(tmp_path / "train_images.npy", np.zeros((6, 8, 9, 3), np.uint8))
    np.save(tmp_path / "train_labels.npy", np.arange(6) % 2)
    Image.new("RGB", (50, 40)).save(tmp_path / "sheet.png")
    assert shapes(read_images(str(tmp_path), 4)) == [(3, 8, 9)] * 4


def test_an_export_takes_the_images_of_the_run_or_of_the_package(photos):
    proving, calibrating, _ = images_for_export(open_model("packaged"))
    assert (shapes(proving), calibrating) == ([(3, 64, 64)] * 10, None)
    with pytest.raises(ConfigError, match="--images"):
        images_for_export(trained())
    model = trained(record=True)
    model = replace(model, record=replace(model.record, source=str(photos)))
    assert len(images_for_export(model)[0]) == 12
    proving, calibrating, _ = images_for_export(model, int8=str(photos), count=6)
    assert {float(image.float().mean()) for image in proving}.isdisjoint(float(i.float().mean()) for i in calibrating)
    proving, calibrating, _ = images_for_export(model, images=str(photos), int8=str(photos), count=5)
    assert (len(proving), len(calibrating)) == (5, 5)


def test_a_benchmark_takes_images_that_suit_the_model(photos, tmp_path):
    packaged = open_model("packaged").task
    assert shapes(images_for_bench(["dist", "packaged"], packaged)) == [(3, 64, 64)] * 10
    run = run_folder(tmp_path / "run", source=str(photos))
    assert shapes(images_for_bench(["dist", str(run)], named("a", "b"))) == [(1, 40, 36)] * 12
    assert shapes(images_for_bench([str(run)], packaged)) == [(1, 40, 36)] * 12, "the run's own first"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = ClassifyConfig().build(None, read_embedded().train.schema)
        assert shapes(images_for_bench(["dist"], task, count=20)) == [(1, 28, 28)] * 20
    gone = run_folder(tmp_path / "gone", source=str(tmp_path / "nothing"))
    with pytest.warns(Notice, match="--images"):
        assert shapes(images_for_bench([str(gone)], named("a", "b"), count=20)) == [(1, 28, 28)] * 20


def test_labels_come_with_the_images_of_int8(tmp_path):
    model = detector()
    files = [picture_file(tmp_path, f"{number}.png", number) for number in range(8)]
    boxes = [{"id": at, "image_id": at, "category_id": 1, "bbox": [16, 12, 80, 60]} for at in range(8)]
    images = [{"id": at, "file_name": file.name} for at, file in enumerate(files)]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    text = json.dumps({"images": images, "annotations": boxes, "categories": categories})
    (tmp_path / "instances.json").write_text(text)
    found = images_for_export(model, int8=str(tmp_path), count=3)
    assert (len(found.certificate), len(found.int8)) == (3, 3)
    assert found.truth["boxes"].shape == (3, 3, 7)  # as many as the model knows
    assert found.truth["boxes"][0, 0, :5].tolist() == pytest.approx([6.4, 6.4, 38.4, 38.4, 0])  # 160 x 120 at 64 x 64
    (tmp_path / "instances.json").unlink()
    with pytest.warns(Notice, match="labels"):
        assert images_for_export(model, int8=str(tmp_path), count=3).truth is None


def test_masks_are_not_images(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("L", (8, 8), number).save(tmp_path / name / f"{number}.png")
    assert len(read_images(str(tmp_path), 10)) == 3
