"""Masks and depth maps as files: they are read back as data sets, and an interrupted call goes on."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_detector import SIZE, picture_file

from vitrail.data.sources.opening import open_data
from vitrail.data.targets.depth_target import read_depth
from vitrail.data.targets.drawing import class_colour
from vitrail.deploy.bulk.image_files import ImageFile, find_images
from vitrail.deploy.bulk.pixel_folder import PixelFolder
from vitrail.deploy.bulk.prediction_table import Bulk, bulk
from vitrail.errors import ConfigError, DataError, WriteError
from vitrail.tasks.answer import Answer, Prediction
from vitrail.tasks.depth.depth_answer import DepthAnswer
from vitrail.tasks.segment.mask_answer import COLUMNS, MaskAnswer

CLASSES = ("road", "tree", "void's neighbour")


def mask(seed: int) -> MaskAnswer:
    classes = torch.randint(0, 3, SIZE, generator=torch.Generator().manual_seed(seed))
    classes[0, 0] = 255
    return MaskAnswer.of(CLASSES, classes)


def photos(folder: Path, names: Sequence[str] = ("a.png", "b.png", "night/a.png")) -> list[ImageFile]:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture_file((folder / name).parent, Path(name).name, seed)
    return list(find_images([folder]))


def write(out: Path, images: Sequence[ImageFile], answers: Sequence[Answer | None], *, dies: int | None = None) -> Bulk:
    kind = next(one.kind for one in answers if one is not None)
    form = PixelFolder(out, COLUMNS if kind == "mask" else (), kind)

    def rows(left: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        for count, image in enumerate(left):
            if count == dies:
                raise KeyboardInterrupt
            answer = answers[images.index(image)]
            yield form.row(Prediction(image.name, answer, "broken" if answer is None else None), image, form.columns)

    return bulk(images, form.rows, rows, columns=form.columns, model="runs/demo@01", form=form)


def test_masks_beside_their_images_are_a_data_set(tmp_path):
    images, answers = photos(tmp_path / "images"), [mask(0), mask(1), mask(2)]
    assert write(tmp_path / "masks", images, answers) == (3, 3, 0)
    names = {str(file.relative_to(tmp_path / "masks")) for file in (tmp_path / "masks").rglob("*") if file.is_file()}
    assert names == {"a.png", "b.png", "night/a.png", "classes.txt", "dataset.csv", "predictions.jsonl"}
    for source in (tmp_path, tmp_path / "masks" / "dataset.csv"):
        splits = open_data(source, val=0.34)
        (target,) = splits.train.schema.values()
        assert target.classes == CLASSES
        for index in range(len(splits.train)):
            file = Path(splits.train.where(index)).resolve()
            at = next(at for at, image in enumerate(images) if image.file.resolve() == file)
            assert torch.equal(target.load(splits.train.targets["mask"][index]), answers[at].classes)


def test_a_mask_has_the_colours_of_drawings(tmp_path):
    write(tmp_path / "masks", photos(tmp_path / "images", ["a.png"]), [mask(0)])
    with Image.open(tmp_path / "masks" / "a.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.array(image), mask(0).classes.numpy())
        assert image.convert("RGB").getpixel((0, 0)) == (0, 0, 0)
        assert image.convert("RGB").getpixel((5, 7)) == class_colour(int(mask(0).classes[7, 5]))


def test_depth_maps_are_a_data_set(tmp_path):
    images = photos(tmp_path / "images", ["a.png", "b.png", "c.png"])
    depth = torch.rand(SIZE, generator=torch.Generator().manual_seed(0)) * 60 + 0.5
    near, far = depth / 1000, depth * 1000
    depth[0, 0] = 0
    assert write(tmp_path / "depth", images, [DepthAnswer.of(one) for one in (depth, near, far)]).rows == 3
    found = {file.name: file for file in (tmp_path / "depth").iterdir()}
    assert {"a.png", "b.npy", "c.npy", "depth_scale.txt", "dataset.csv"} <= found.keys()
    with Image.open(found["a.png"]) as image:
        assert image.mode.startswith("I")
    read = read_depth(found["a.png"], float(found["depth_scale.txt"].read_text()))
    assert np.abs(read - depth.numpy()).max() <= 0.00051
    assert np.array_equal(np.load(found["b.npy"]), near.numpy())
    for source in (tmp_path, found["dataset.csv"]):
        splits = open_data(source, val=0.34)
        assert splits.train.schema["depth"].kind == "depth"
        assert len(splits.train) + len(splits.val) == 3


def test_it_goes_on_after_an_interrupt_and_grows(tmp_path):
    images, answers = photos(tmp_path / "images"), [mask(0), None, mask(2)]
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "masks", images, answers, dies=1)
    assert (tmp_path / "masks" / "a.png").is_file()
    assert write(tmp_path / "masks", images[:2], answers) == (2, 1, 1)
    assert write(tmp_path / "masks", images, answers) == (3, 1, 1)
    with (tmp_path / "masks" / "dataset.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"path": "../images/a.png", "mask": "a.png"},
        {"path": "../images/night/a.png", "mask": "night/a.png"},
    ]


def test_two_images_of_one_name_have_two_files(tmp_path):
    images = [*photos(tmp_path / "one", ["a.png"]), *photos(tmp_path / "two", ["a.png"])]
    write(tmp_path / "masks", images, [mask(0), mask(1)])
    for name, seed in (("a.png", 0), ("a-2.png", 1)):
        with Image.open(tmp_path / "masks" / name) as image:
            assert np.array_equal(np.array(image), mask(seed).classes.numpy())


@pytest.mark.parametrize("below", ["../../a.png", "/etc/a.png", "..", "x/../../a.png"])
def test_no_file_is_written_elsewhere(below, tmp_path):
    (image,) = photos(tmp_path / "images", ["a.png"])
    write(tmp_path / "in" / "masks", [ImageFile(image.name, image.file, below=below)], [mask(0)])
    assert not {file.parent.name for file in tmp_path.rglob("*.png")} - {"images", "masks", "etc", "x"}
    assert all(file.is_relative_to(tmp_path / "in" / "masks") for file in (tmp_path / "in").rglob("*.png"))


def test_a_folder_and_a_file_of_one_name(tmp_path):
    (first, second) = (ImageFile(str(n), Path(f"{n}.jpg"), below=n) for n in ("a.jpg", "a.png/x.jpg"))
    for order in ((first, second), (second, first)):
        form = PixelFolder(tmp_path / order[0].name.replace("/", ""), (), "mask")
        names = [form.row(Prediction(image.name, mask(0)), image, form.columns)["file"] for image in order]
        assert len({(form.folder / name).stat().st_ino for name in names}) == 2


def test_a_link_to_another_folder_is_refused(tmp_path):
    images = photos(tmp_path / "images", ["a.png", "night/a.png"])
    write(tmp_path / "masks", images[:1], [mask(0)])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "masks" / "night").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WriteError, match="link"):
        write(tmp_path / "masks", images, [mask(0), mask(1)])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["3", '["a"]', '"a\\u0000"'])
def test_rows_that_name_no_file_are_refused(name, tmp_path):
    images = photos(tmp_path / "images")
    write(tmp_path / "masks", images[:1], [mask(0)])
    table = tmp_path / "masks" / "predictions.jsonl"
    table.write_text(table.read_text().replace('"file": "a.png"', f'"file": {name}'))
    with pytest.raises(DataError, match="damaged"):
        write(tmp_path / "masks", images, [mask(0), mask(1), mask(2)])


def test_folders_of_others_are_refused(tmp_path):
    images = photos(tmp_path / "images", ["a.png"])
    before = images[0].file.read_bytes()
    with pytest.raises(ConfigError, match="empty"):
        write(tmp_path / "images", images, [mask(0)])
    assert images[0].file.read_bytes() == before
    with pytest.raises(ConfigError, match="file"):
        write(images[0].file, images, [mask(0)])


def test_a_file_that_was_removed_is_missed(tmp_path):
    images = photos(tmp_path / "images")
    write(tmp_path / "masks", images[:1], [mask(0)])
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(DataError, match="missing"):
        write(tmp_path / "masks", images, [mask(0), mask(1), mask(2)])


def test_the_map_of_one_of_many_tasks(tmp_path):
    class Both(MaskAnswer):
        kind = "many"

        def parts(self):
            return {"segment": mask(3), "depth": DepthAnswer.of(torch.ones(SIZE))}

    (image,) = photos(tmp_path / "images", ["a.png"])
    both = Both(CLASSES, SIZE, mask(0).pixels)
    for kind in ("mask", "depth"):
        form = PixelFolder(tmp_path / kind, (), kind)
        form.check(form.rows)
        assert form.row(Prediction(image.name, both), image, form.columns)["file"] == "a.png"
    with Image.open(tmp_path / "mask" / "a.png") as found:
        assert np.array_equal(np.array(found), mask(3).classes.numpy())
    assert read_depth(tmp_path / "depth" / "a.png", 1000).max() == 1
