"""A fingerprint depends on weights, task and preprocessing, not on the path."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.shipped import trained
from support.small_detector import detector

from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.fingerprint import fingerprint, same_model
from vitrail.runs.trained import TrainedModel


class FileEngine(Engine):
    """An artefact, of which only its files count."""

    backend = "none"

    def run(self, images):
        raise NotImplementedError


def of(model: TrainedModel, source: str = "runs/a") -> str:
    return fingerprint(TorchEngine(replace(model, source=source)))


def test_the_same_weights_are_the_same_model_wherever_they_are():
    one = of(trained())
    assert one.startswith("runs/a@")
    assert len(one) == len("runs/a@") + 12
    assert one == of(trained())
    assert same_model(one, of(trained(), "mail@home/b"))
    assert not same_model(None, one)


def brighter(model: TrainedModel) -> TrainedModel:
    return replace(model, preprocess=replace(model.preprocess, mean=(0.1, 0.2, 0.3)))


def cropped(model: TrainedModel) -> TrainedModel:
    return replace(model, preprocess=replace(model.preprocess, crop=0.9))


def recalibrated(model: TrainedModel) -> TrainedModel:
    model.task.thresholds.fill_(0.9)
    return model


def finetuned(model: TrainedModel) -> TrainedModel:
    with torch.no_grad():
        next(model.backbone.parameters()).add_(1e-3)
    return model


@pytest.mark.parametrize("change", [brighter, cropped, recalibrated, finetuned])
def test_whatever_changes_answers_changes_the_fingerprint(change):
    assert not same_model(of(trained(kind="labels")), of(change(trained(kind="labels"))))


def test_an_artefact_is_known_by_all_its_files(tmp_path):
    card = Card.of(trained())
    for name in ("model.xml", "model.bin", "other.xml"):
        (tmp_path / name).write_bytes(b"some")
    whole = fingerprint(FileEngine(tmp_path / "model.xml", card))
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert same_model(whole, fingerprint(FileEngine(tmp_path / "copy" / "model.xml", card)))
    assert not same_model(whole, fingerprint(FileEngine(tmp_path / "other.xml", card)))
    (tmp_path / "model.bin").write_bytes(b"more")
    assert not same_model(whole, fingerprint(FileEngine(tmp_path / "model.xml", card)))


def test_the_head_beside_a_model_counts():
    model = detector()
    before = fingerprint(TorchEngine(model))
    assert fingerprint(TorchEngine(detector())) == before
    with torch.no_grad():
        model.task.head.level_position.add_(1)
    assert fingerprint(TorchEngine(model)) != before
