"""Predictions for files, folders and images: the right image behind each name, and no file that stops the others."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.registered import tiny
from support.small_tasks import CLASSES, classifier

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, DataError, InputError
from vitrail.models.backbone import Backbone
from vitrail.runs.predict import image_files, pixels, predict
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.task import Task


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for name in ("b.png", "a.png", "deep/er/c.bmp", ".hidden.png", ".cache/d.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(file)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "broken.jpg").write_text("<html>")
    return tmp_path


def trained(task: Task | None = None, **preprocess) -> TrainedModel:
    task = task or classifier()
    backbone: Backbone = task.backbone
    known = {"image_size": backbone.config.image_size, "channels": backbone.config.channels}
    return TrainedModel(
        source="test", backbone=backbone, preprocess=Preprocess(**known, **preprocess), head=task.eval()
    )


def expected(model: TrainedModel, file: Path) -> torch.Tensor:
    image = torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1)[None]
    return model.task.outputs(model.preprocess(image))["logits"][0].softmax(dim=0).detach()


def test_a_folder_is_searched_and_broken_files_are_named(photos):
    model = trained()
    found = predict(model, photos, batch_size=2)
    assert [result.path.removeprefix(f"{photos}/") for result in found] == [
        "a.png",
        "b.png",
        "broken.jpg",
        "deep/er/c.bmp",
    ]
    assert "broken.jpg" in found[2].error
    assert found[2].answer is None
    for result in (found[0], found[1], found[3]):
        probabilities = expected(model, result.path)
        order = probabilities.argsort(descending=True)
        candidates = result.answer.candidates
        assert [one.label for one in candidates] == [CLASSES[label] for label in order]
        assert [one.probability for one in candidates] == pytest.approx(probabilities[order].tolist(), abs=1e-5)


def test_results_are_plain_data(photos):
    found = predict(trained(), [photos / "a.png", photos / "broken.jpg"], top=2)
    plain = json.loads(json.dumps([result.to_dict() for result in found]))
    assert [list(one) for one in plain] == [["path", "answers", "error"], ["path", "error"]]
    assert len(plain[0]["answers"]) == 2
    assert plain[0]["error"] is None


def test_missing_files_and_empty_folders_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    missing, empty, folder = predict(trained(), [tmp_path / "no.jpg", tmp_path / "empty", str(tmp_path)])
    assert "No such file" in missing.error
    assert "without images" in empty.error
    assert "without images" in folder.error


def test_every_kind_of_image_has_the_same_answer(photos):
    opened = Image.open(photos / "a.png")
    array = np.asarray(opened)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    model = trained()
    found = predict(model, [photos / "a.png", str(photos / "a.png"), opened, array, tensor])
    assert len({result.answer for result in found}) == 1
    assert [result.path for result in found[2:]] == ["image 2", "image 3", "image 4"]
    for stack in (np.stack([array] * 5), torch.stack([tensor] * 5)):
        assert [result.answer for result in predict(model, stack)] == [found[0].answer] * 5


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK", "I;16"])
def test_images_of_any_mode(mode):
    image = Image.new("RGB", (20, 30), "red").convert("L").convert(mode) if mode == "I;16" else None
    image = image or Image.new("RGB", (20, 30), "red").convert(mode)
    assert pixels(image).shape in {(3, 30, 20), (1, 30, 20)}
    assert pixels(image).dtype == torch.uint8


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros(4, np.uint8),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(3, 4, 4),
        torch.zeros(2, 4, 4, dtype=torch.uint8),
    ],
)
def test_arrays_that_are_not_images_are_refused(wrong):
    with pytest.raises(InputError, match="uint8"):
        predict(trained(), [wrong])


@pytest.mark.parametrize("wrong", [42, [None], b"bytes", [["a.png", 1.5]]])
def test_what_is_no_image_at_all_is_refused_by_its_type(wrong):
    with pytest.raises(InputError, match=r"type (int|NoneType|bytes|float)"):
        predict(trained(), wrong)


def test_normalisation_is_the_trainings(photos):
    task = classifier()
    model, usual = trained(task, mean=(0.1, 0.2, 0.3), std=(0.2, 0.2, 0.2)), trained(task)
    (found,) = predict(model, photos / "a.png")
    best = expected(model, photos / "a.png").max().item()
    assert found.answer.candidates[0].probability == pytest.approx(best, abs=1e-5)
    assert best != pytest.approx(expected(usual, photos / "a.png").max().item(), abs=1e-4)


def test_several_labels_are_chosen_by_threshold(photos):
    task = classifier(multi_label=True, thresholds=[0.0, 0.0, 1.1, 1.1, 0.0])
    (found,) = predict(trained(task), photos / "a.png", top=1)
    assert {one.label for one in found.answer.candidates if one.chosen} == {"ant", "bee", "elk"}


def test_results_are_heard_of_one_by_one(photos):
    heard = []
    assert predict(trained(), photos, on_result=heard.append, batch_size=1) == heard
    assert len(heard) == 4


def test_a_grey_model_takes_colour(photos):
    (found,) = predict(trained(classifier(tiny(channels=1))), photos / "a.png")
    assert found.error is None


def test_too_few_candidates_are_refused(photos):
    with pytest.raises(ConfigError, match="top"):
        predict(trained(), photos, top=0)


def test_files_come_in_alphabetical_order(photos):
    names = [file.name for file in image_files([photos, photos / "b.png"])]
    assert names == ["a.png", "b.png", "broken.jpg", "c.bmp", "b.png"]


def test_a_folder_that_cannot_be_listed_is_not_one_without_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="list"):
        list(image_files(tmp_path))
