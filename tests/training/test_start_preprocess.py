"""How images were normalised, as weights tell it: runs, teachers and predictions go by it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.run_folder import run_folder
from support.small_data import photos, split

import vitrail
from vitrail.errors import ConfigError
from vitrail.models.checkpoint.timm import Timm
from vitrail.runs.record import Result
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.tasks.distill import Distill
from vitrail.training.plan import Plan, make_plan

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TINY = {"dim": 32, "depth": 1, "num_heads": 2, "image_size": 32, "num_classes": 2}


def beside(folder: Path, name: str, about: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(about if isinstance(about, str) else json.dumps(about))
    return folder


def of_timm(folder: Path) -> Path:
    """A checkpoint as timm pushes it to a hub."""
    foreign = Timm().write(vitrail.create("vit_tiny_patch16", **TINY))
    folder.mkdir()
    torch.save(dict(foreign.tensors), folder / "pytorch_model.bin")
    return beside(folder, "config.json", {**foreign.config, "pretrained_cfg": {"mean": MEAN, "std": STD}})


def planned(**options: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fresh head gives a notice
        return make_plan(split(photos(20)), **options)


def test_fine_tuning_and_predictions_go_by_it(tmp_path: Path) -> None:
    weights = of_timm(tmp_path / "timm")
    plan = planned(start=weights)
    assert (plan.preprocess.mean, plan.preprocess.std) == (MEAN, STD)
    assert any("0.485" in note for note in plan.notes)
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    expected = -torch.tensor(MEAN) / torch.tensor(STD)
    torch.testing.assert_close(open_model(weights).preprocess(black)[0, :, 0, 0], expected)


def test_a_model_that_is_saved_again_or_converted_normalises_as_before(tmp_path: Path) -> None:
    weights = of_timm(tmp_path / "timm")
    vitrail.save(vitrail.load(weights), tmp_path / "again")
    vitrail.convert(weights, tmp_path / "hf", to="hf")
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    expected = open_model(weights).preprocess(black)
    for place in ("again", "hf"):
        assert torch.equal(open_model(tmp_path / place).preprocess(black), expected)
        assert planned(start=tmp_path / place).preprocess.mean == MEAN


def test_the_recipe_overrides_the_weights(tmp_path: Path) -> None:
    plan = planned(start=of_timm(tmp_path / "timm"), changes={"preprocess": {"mean": [0.1], "std": [0.2]}})
    assert (plan.preprocess.mean, plan.preprocess.std) == ((0.1,), (0.2,))


def test_the_packaged_model_is_fine_tuned_as_it_was_trained() -> None:
    plan, packaged = planned(start="packaged"), open_model("packaged")
    assert plan.preprocess == packaged.preprocess
    config = plan.backbone_config
    assert (config.num_classes, config.channels) == (2, packaged.task.backbone.config.channels)
    assert any("grey, as the weights were" in note for note in plan.notes) == (config.channels == 1)
    body, head = plan.build_task().backbone.state_dict(), "head.weight"
    assert all(torch.equal(body[name], tensor) for name, tensor in weights_of(packaged).items() if name[:4] != "head")
    assert body[head].shape[0] == 2


def weights_of(trained: TrainedModel) -> dict[str, torch.Tensor]:
    return trained.task.backbone.state_dict()


def test_weights_without_preprocessing_are_noted(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("vit_tiny_patch16", **TINY), tmp_path)
    plan = planned(start=tmp_path)
    assert plan.preprocess.mean == (0.5,)
    assert any("no file beside the weights" in note for note in plan.notes)


def test_a_teacher_sees_images_as_its_own_training_did(tmp_path: Path) -> None:
    weights = of_timm(tmp_path / "timm")
    changes = {"options": TINY, "preprocess": {"mean": [0.4], "std": [0.3]}}
    plan = planned(model="vit_tiny_patch16", teacher=weights, changes=changes)
    assert any(f"teacher {weights}" in note for note in plan.notes)
    task = plan.build_task()
    assert isinstance(task, Distill)
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    expected = vitrail.load(weights)((pixels - mean) / std)
    torch.testing.assert_close(task.teacher[0]((pixels - 0.4) / 0.3), expected, rtol=1e-4, atol=1e-5)


def test_a_teacher_of_another_kind_or_of_other_classes_is_refused_before_an_image_is_read(tmp_path: Path) -> None:
    run_folder(tmp_path, Result(metrics={}, state={"thresholds": [0.3, 0.6]}), multi_label=True)
    with pytest.raises(ConfigError, match="labels"):
        planned(model="vit_tiny_patch16", teacher=tmp_path, changes={"options": TINY})
    with pytest.raises(ConfigError, match="dark"):
        planned(model="vit_tiny_patch16", teacher="packaged", changes={"options": TINY})
