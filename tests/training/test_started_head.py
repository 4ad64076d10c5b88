"""Training that starts from Hugging Face's models with a head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.headed_folders import KINDS, headed_folder, labelled
from support.task_data import MAKERS

from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.models.heads import DeformableDetrConfig
from vitrail.runs.headed import open_head
from vitrail.runs.trained import open_model
from vitrail.training.plan import make_plan

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.Notice")


@pytest.mark.parametrize("name", KINDS)
def test_starts_with_the_backbone_and_the_head(name: str, tmp_path: Path) -> None:
    headed_folder(name, tmp_path / "peer")
    plan = make_plan(labelled(name, tmp_path / "data"), start=tmp_path / "peer")
    task: Any = plan.build_task()
    theirs, preprocess, _ = open_head(tmp_path / "peer")
    assert plan.preprocess == preprocess
    states = [one.state_dict() for one in (task, theirs)]
    same = [key for key in states[0] if states[0][key].shape == states[1][key].shape]
    assert all(torch.equal(states[0][key], states[1][key]) for key in same)
    other = [key for key in states[0] if key not in same]
    assert all(any(part in key for part in ("classifier", "noised_label")) for key in other)
    assert bool(other) == (name != "DPT")  # two classes are fewer than the model has
    assert any("head" in note for note in plan.notes)


def test_another_head_that_was_asked_for(tmp_path: Path) -> None:
    headed_folder("DETR", tmp_path / "peer")
    task = {"kind": "detect", "head": {"kind": "deformable_detr", "queries": 9}}
    plan = make_plan(labelled("DETR", tmp_path / "data"), start=tmp_path / "peer", task=task)
    assert plan.task.head == DeformableDetrConfig(queries=9)  # type: ignore[attr-defined]
    plan.build_task()


def test_another_task_takes_the_backbone_alone(tmp_path: Path) -> None:
    headed_folder("DPT", tmp_path / "peer")
    plan = make_plan(MAKERS["class"](tmp_path / "data"), start=tmp_path / "peer")
    assert any("left out" in note for note in plan.notes)
    assert plan.build_task().backbone.config.num_classes == 2


def test_a_model_that_was_named_as_well_must_be_the_same(tmp_path: Path) -> None:
    headed_folder("DPT", tmp_path / "peer")
    with pytest.raises(VitrailError, match="vit_tiny"):
        make_plan(labelled("DPT", tmp_path / "data"), start=tmp_path / "peer", model="vit_tiny_patch16")


def test_train_from_the_command_line(tmp_path: Path) -> None:
    headed_folder("SegFormer", tmp_path / "peer")
    data, out = labelled("SegFormer", tmp_path / "data"), tmp_path / "run"
    words = ["train", str(data), "--from", str(tmp_path / "peer"), "--epochs", "1", "--out", str(out)]
    assert main([*words, "--device", "cpu"]) == 0
    assert open_model(out).preprocess.image_size == (128, 160)
