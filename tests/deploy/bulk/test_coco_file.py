"""Boxes as COCO's JSON: pycocotools and vitrail read them back, and an interrupted call goes on."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.small_detector import SIZE, picture_file

from vitrail.data.sources.opening import open_data
from vitrail.deploy.bulk.coco_file import CocoFile
from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.prediction_table import bulk
from vitrail.deploy.bulk.table_files import row_of
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.answer import Prediction
from vitrail.tasks.detect.detect_answer import COLUMNS, BoxesAnswer, FoundBox

MODEL = "runs/demo@0123456789ab"
CLASSES = ("cat", "dog")


class Model:
    """Finds a box in each picture, one of them outside of it, and dies after some."""

    def __init__(self, dies: int | None = None) -> None:
        self.dies, self.asked = dies, []

    def __call__(self, images: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        for count, image in enumerate(images):
            if count == self.dies:
                raise KeyboardInterrupt
            self.asked.append(image.file.name)
            boxes = (
                FoundBox("dog", 1, 0.875, (10.0, 20.123, 50.0, 80.0)),
                FoundBox("cat", 0, 0.5, (160.0, 4.0, 160.0, 9.0)),
            )
            answer = BoxesAnswer(boxes if image.file.stem != "empty" else (), SIZE)
            broken = image.file.stem == "broken"
            one = Prediction(image.name, error="broken") if broken else Prediction(image.name, answer)
            yield row_of(one, COLUMNS)


def images(folder: Path) -> list[ImageFile]:
    (folder / "photos").mkdir(exist_ok=True)
    files = [picture_file(folder / "photos", f"{name}.png") for name in ("a", "b", "empty", "broken")]
    return [ImageFile(str(file), file) for file in files]


def write(folder: Path, model: Model, chosen: slice = slice(None)) -> tuple[int, int, int]:
    form = CocoFile(CLASSES)
    return bulk(images(folder)[chosen], folder / "boxes.json", model, columns=COLUMNS, model=MODEL, form=form)


def test_pycocotools_reads_both_files(tmp_path, capsys):
    coco = pytest.importorskip("pycocotools.coco")
    assert write(tmp_path, Model()) == (4, 4, 1)
    found = coco.COCO(str(tmp_path / "boxes.json"))
    assert found.loadCats(found.getCatIds()) == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    assert [(one["file_name"], one["width"], one["height"]) for one in found.loadImgs(found.getImgIds())] == [
        (f"photos/{name}.png", SIZE[1], SIZE[0]) for name in ("a", "b", "empty")
    ]
    results = found.loadRes(str(tmp_path / "boxes.results.json"))
    (box,) = results.loadAnns(results.getAnnIds(imgIds=[1]))
    assert (box["bbox"], box["score"], box["category_id"]) == ([10.0, 20.12, 40.0, 59.88], 0.875, 2)
    assert capsys.readouterr().out


def test_they_are_a_data_set(tmp_path):
    write(tmp_path, Model(), slice(3))
    splits = open_data(tmp_path / "boxes.json", val=0.34)
    (target,) = splits.train.schema.values()
    assert target.classes == CLASSES
    assert len(splits.train) + len(splits.val) == 3
    value = splits.train.targets["boxes"]
    assert value[0, 0, :5].tolist() == pytest.approx([10, 20.12, 50, 80, 1])
    assert splits.train.read(0).shape == (3, *SIZE)


def test_it_goes_on_after_an_interrupt_and_grows(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, Model(dies=1))
    assert not (tmp_path / "boxes.json").exists()
    model = Model()
    assert write(tmp_path, model, slice(2)) == (2, 1, 0)
    before = json.loads((tmp_path / "boxes.json").read_text())["annotations"]
    assert write(tmp_path, model) == (4, 2, 1)
    assert model.asked == ["b.png", "empty.png", "broken.png"]
    after = json.loads((tmp_path / "boxes.json").read_text())
    assert after["annotations"] == before
    assert after["info"]["errors"] == {str(tmp_path / "photos" / "broken.png"): "broken"}
    assert write(tmp_path, Model()) == (4, 0, 1)


def test_files_of_others_are_refused_and_unchanged(tmp_path):
    for text in ('{"images": [], "annotations": [], "categories": []}', "[]", "no JSON", '{"info": 3}'):
        (tmp_path / "boxes.json").write_text(text)
        with pytest.raises(DataError, match=r"boxes\.json"):
            write(tmp_path, Model(dies=0))
        assert (tmp_path / "boxes.json").read_text() == text


def test_results_of_others_are_refused_and_unchanged(tmp_path):
    (tmp_path / "boxes.results.json").write_text("[1]")
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path, Model(dies=0))
    assert (tmp_path / "boxes.results.json").read_text() == "[1]"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("images", {"width": "wide"}),
        ("images", {"width": 1e300}),
        ("images", {"path": 3}),
        ("annotations", {"score": "high"}),
        ("annotations", {"bbox": ["0", 0, 1, 1]}),
        ("annotations", {"image_id": 10**19}),
        ("categories", {"name": "horse"}),
    ],
)
def test_a_file_that_was_changed_is_refused_or_continued(part, change, tmp_path):
    write(tmp_path, Model(), slice(2))
    data = json.loads((tmp_path / "boxes.json").read_text())
    data[part][0] |= change
    (tmp_path / "boxes.json").write_text(json.dumps(data))
    if change.get("width") == 1e300:
        assert write(tmp_path, Model()).rows == 4
        return
    with pytest.raises(DataError, match=r"boxes\.json"):
        write(tmp_path, Model())


def test_an_error_without_a_reason_is_refused(tmp_path):
    write(tmp_path, Model(), slice(2))
    data = json.loads((tmp_path / "boxes.json").read_text())
    data["info"]["errors"] = {"b.png": None}
    (tmp_path / "boxes.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"boxes\.json"):
        write(tmp_path, Model())


def test_a_refusal_does_not_repeat_the_file(tmp_path):
    (tmp_path / "boxes.json").write_bytes(10_000 * b"\xff")
    with pytest.raises(DataError) as error:
        write(tmp_path, Model(dies=0))
    assert len(str(error.value)) < 600


def test_bad_names_and_tasks_are_refused(tmp_path):
    form = CocoFile(CLASSES)
    for name in ("boxes.txt", "boxes.results.json"):
        with pytest.raises(ConfigError, match="boxes"):
            form.check(tmp_path / name)
