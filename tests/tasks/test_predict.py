"""Predictions for files and folders: the right image behind each name, and no file that stops the others."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from registered import tiny

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.cache import fit
from vitrail.errors import ConfigError
from vitrail.tasks.classify import Classify
from vitrail.tasks.predict import as_task, named_labels, predict

CLASSES = ("ant", "bee", "cat", "dog", "elk")


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


def expected(task, file, **options):
    pixels = torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1)[None]
    size = task.backbone.config.image_size
    prepare = Prepare(AugmentConfig(**options), image_size=size, channels=3)
    return task.predict(prepare(fit(pixels, size=size, channels=3)))["probabilities"][0].detach()


def test_a_folder_is_searched_and_broken_files_are_said(photos):
    task = Classify(tiny(), classes=CLASSES)
    found = predict(task, photos, batch_size=2)
    assert [result.path.removeprefix(f"{photos}/") for result in found] == [
        "a.png",
        "b.png",
        "broken.jpg",
        "deep/er/c.bmp",
    ]
    assert "broken.jpg cannot be decoded" in found[2].error
    assert found[2].answers == ()
    for result in (found[0], found[1], found[3]):
        probabilities = expected(task, result.path)
        order = probabilities.argsort(descending=True)
        assert [answer.label for answer in result.answers] == [CLASSES[label] for label in order]
        assert [answer.probability for answer in result.answers] == pytest.approx(
            probabilities[order].tolist(), abs=1e-5
        )
        assert [answer.chosen for answer in result.answers] == [True, False, False, False, False]


def test_results_are_plain_data(photos):
    found = predict(Classify(tiny(), classes=CLASSES), [photos / "a.png", photos / "broken.jpg"], top=2)
    plain = json.loads(json.dumps([result.to_dict() for result in found]))
    assert [list(one) for one in plain] == [["path", "answers", "error"]] * 2
    assert len(plain[0]["answers"]) == 2
    assert list(plain[0]["answers"][0]) == ["label", "probability", "chosen"]
    assert plain[1]["answers"] == []


def test_missing_files_and_empty_folders_are_said(tmp_path):
    (tmp_path / "empty").mkdir()
    missing, empty, folder = predict(tiny(), [tmp_path / "no.jpg", tmp_path / "empty", str(tmp_path)])
    assert "No such file" in missing.error
    assert "without images" in empty.error
    assert "without images" in folder.error


def test_normalisation_is_the_trainings(photos):
    task = Classify(tiny(), classes=CLASSES)
    options = {"mean": (0.1, 0.2, 0.3), "std": (0.2, 0.2, 0.2)}
    (found,) = predict(task, photos / "a.png", augment=AugmentConfig(**options))
    best = expected(task, photos / "a.png", **options).max().item()
    assert found.answers[0].probability == pytest.approx(best, abs=1e-5)
    assert best != pytest.approx(expected(task, photos / "a.png").max().item(), abs=1e-4)


def test_several_labels_are_chosen_by_threshold(photos):
    task = Classify(tiny(), classes=CLASSES, multi_label=True)
    task.adopt({"thresholds": torch.tensor([0.0, 0.0, 1.1, 1.1, 0.0])})
    (found,) = predict(task, photos / "a.png")
    assert {answer.label for answer in found.answers if answer.chosen} == {"ant", "bee", "elk"}


def test_a_plain_model_numbers_its_classes_and_stays_as_it_was(photos):
    model = tiny().train()
    (found,) = predict(model, str(photos / "a.png"), top=9)
    assert {answer.label for answer in found.answers} == {"0", "1", "2", "3", "4"}
    assert model.labels is None
    assert model.training
    model.labels = CLASSES
    assert {answer.label for answer in predict(model, photos / "a.png")[0].answers} == set(CLASSES)


def test_another_size_needs_a_model_that_takes_it(photos):
    (found,) = predict(tiny(dynamic_size=True), photos / "a.png", image_size=(16, 16))
    assert len(found.answers) == 5


def test_results_are_heard_of_one_by_one(photos):
    heard = []
    assert predict(tiny(), photos, on_result=heard.append, batch_size=1) == heard
    assert len(heard) == 4


def test_a_grey_model_takes_colour(photos):
    (found,) = predict(tiny(channels=1), photos / "a.png")
    assert found.error is None


def test_bad_questions_are_refused(photos):
    with pytest.raises(ConfigError, match="top is 0"):
        predict(tiny(), photos, top=0)
    with pytest.raises(ConfigError, match="has no head"):
        as_task(tiny(num_classes=0))


def test_labels_that_were_decided_for_are_named_beyond_the_first():
    assert named_labels([0.2, 0.5, 0.3, 0.1], [False, False, False, True], top=2) == [1, 2, 3]
    assert named_labels([0.2, 0.5], [True, True], top=5) == [1, 0]
