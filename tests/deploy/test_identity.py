"""What tells a model from others: its weights and what is made of their answers, not where it lies."""

import shutil
from dataclasses import replace

import pytest
import torch
from shipped import Opened, opened

from vitrail.deploy.card import Card
from vitrail.deploy.engine import Engine, TorchEngine
from vitrail.deploy.identity import identify, same_model


class FileEngine(Engine):
    """An artefact, of which only its files count."""

    backend = "none"

    def run(self, images):
        raise NotImplementedError


def of(model: Opened, source: str = "runs/a") -> str:
    return identify(TorchEngine(source, model))


def test_the_same_weights_are_the_same_model_wherever_they_lie():
    one = of(opened())
    assert one.startswith("runs/a@")
    assert len(one) == len("runs/a@") + 12
    assert one == of(opened())
    assert same_model(one, of(opened(), "mail@home/b"))
    assert not same_model(None, one)


def brighter(model: Opened) -> Opened:
    return replace(model, augment=replace(model.augment, mean=(0.1, 0.2, 0.3)))


def stricter(model: Opened) -> Opened:
    model.task.thresholds.fill_(0.9)
    return model


def learned(model: Opened) -> Opened:
    with torch.no_grad():
        next(model.task.backbone.parameters()).add_(1e-3)
    return model


@pytest.mark.parametrize("change", [brighter, stricter, learned])
def test_another_way_to_answer_is_another_model(change):
    assert not same_model(of(opened(multi_label=True)), of(change(opened(multi_label=True))))


def test_an_artefact_is_known_by_all_its_files(tmp_path):
    card = Card.of(opened())
    for name in ("model.xml", "model.bin", "other.xml"):
        (tmp_path / name).write_bytes(b"some")
    whole = identify(FileEngine(tmp_path / "model.xml", card))
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert same_model(whole, identify(FileEngine(tmp_path / "copy" / "model.xml", card)))
    assert not same_model(whole, identify(FileEngine(tmp_path / "other.xml", card)))
    (tmp_path / "model.bin").write_bytes(b"more")
    assert not same_model(whole, identify(FileEngine(tmp_path / "model.xml", card)))
