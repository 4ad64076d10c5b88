"""What is decided before the first step, and why."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.registered import tiny
from support.small_data import grey_squares, photos, split

from vitrail.errors import CheckpointError, ConfigError, HeadNotice, TrainingError
from vitrail.layers.lora import LoRALinear
from vitrail.models.checkpoint import save
from vitrail.models.registry import create
from vitrail.tasks.distill import Distill
from vitrail.training.assemble import prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.plan import make_plan, read_plan
from vitrail.training.state import completed, differences

OPTIONS = {"dim": 32, "depth": 2, "num_heads": 2}


def test_small_grey_images_get_a_small_model_of_one_channel_with_a_note() -> None:
    plan = make_plan(split(grey_squares(40, size=30)))
    config = plan.backbone_config
    assert (plan.config.model, config.image_size, config.channels, config.num_classes) == (
        "vit32_conv",
        (28, 28),
        1,
        2,
    )
    assert any("vit32_conv" in note for note in plan.notes)
    assert any("grey" in note for note in plan.notes)


def test_tiny_images_are_read_as_more_than_one_token() -> None:
    assert make_plan(split(photos(20, size=5))).backbone_config.image_size == (8, 8)


def test_a_named_model_keeps_its_size_and_small_images_are_mentioned() -> None:
    plan = make_plan(split(photos(20, size=32)), model="vit_tiny_patch16", changes={"options": OPTIONS})
    assert plan.backbone_config.image_size == (224, 224)
    assert any("only about 32 x 32" in note for note in plan.notes)
    plan = make_plan(split(photos(20, size=32)), model="vit_tiny_patch16", changes={"image_size": 32})
    assert plan.backbone_config.image_size == (32, 32)


def test_large_photos_get_the_usual_model() -> None:
    plan = make_plan(split(photos(4, size=200)))
    assert plan.config.model == "vit_tiny_patch16"
    assert any("no model was named" in note for note in plan.notes)


def test_a_recipe_and_changes_go_over_one_another() -> None:
    plan = make_plan(
        split(photos(20, size=32)), recipe="cifar10-small", changes={"epochs": 3, "optimiser": {"lr": 0.1}}
    )
    assert (plan.config.epochs, plan.config.optimiser.lr, plan.config.optimiser.weight_decay) == (3, 0.1, 0.05)
    assert plan.config.model == "vit32_small"


def test_a_shortened_warm_up_is_noted() -> None:
    def notes(**changes: object) -> list[str]:
        plan = make_plan(split(photos(20, size=32)), model="vit32_small", changes=changes)
        return [note for note in plan.notes if "warm-up" in note]

    assert notes(epochs=3) == [
        "the warm-up is cut to half of the run: 1.5 instead of 5 epochs (schedule.warmup_epochs)"
    ]
    assert notes(epochs=10) == notes(epochs=2, schedule={"warmup_epochs": 1}) == []


def test_few_images_get_a_batch_that_leaves_them_steps_unless_one_was_named(tmp_path: Path) -> None:
    def chosen(count: int, **options: object) -> int:
        plan = make_plan(split(photos(count, size=8)), **{"model": "vit32_small"} | options)
        assert any("training images: batch_size is" in note for note in plan.notes) == (plan.config.batch_size < 128)
        return plan.config.batch_size

    assert [chosen(count) for count in (20, 600, 5000)] == [16, 32, 256]
    named = {"changes": {"batch_size": 128}}, {"recipe": {"batch_size": 200}}, {"recipe": "cifar10-small"}
    assert all(chosen(20, **options) >= 128 for options in named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert chosen(20, start=pretrained(tmp_path), model=None) == 16  # "finetune" was named by nobody


def test_a_fresh_head_is_noted_once(tmp_path: Path) -> None:
    with pytest.warns(HeadNotice) as notes:
        make_plan(split(photos(20)), start=pretrained(tmp_path)).build_task()
    assert len(notes) == 1


def test_a_run_is_named_after_its_weights_and_not_after_its_recipe(tmp_path: Path) -> None:
    model = create("vit_tiny_patch16", image_size=32, num_classes=2, drop_path=0.1)
    plan = make_plan(split(photos(20)), start=save(model, tmp_path / "whole").parent)
    assert plan.config.model == "vit_tiny_patch16"
    with pytest.warns(HeadNotice):
        assert make_plan(split(photos(20)), start=pretrained(tmp_path)).config.model == "vit"  # of no named size


def test_a_misspelt_option_of_the_model_or_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'depth'"):
        make_plan(split(photos(20)), model="vit32_small", changes={"options": {"dept": 2}})
    with pytest.raises(ConfigError, match="did you mean 'vit32_small'"):
        make_plan(split(photos(20)), model="vit32_smal")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("epoch: 3")
    with pytest.raises(ConfigError, match=r"recipe .*mine\.yaml: epoch is not an option.*did you mean 'epochs'"):
        make_plan(split(photos(20)), recipe=recipe)


def test_two_tasks_of_a_plan_are_equal() -> None:
    plan = make_plan(split(photos(20)), model="vit32_small", changes={"options": OPTIONS})
    first, second = plan.build_task().state_dict(), plan.build_task().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def pretrained(folder: Path) -> Path:
    model = tiny("vit32_small", num_classes=7)
    return save(model, folder / "weights").parent


def test_fine_tuning_starts_from_the_weights_with_a_fresh_head(tmp_path: Path) -> None:
    start = pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = make_plan(split(photos(20)), start=start, changes={"options": {"drop_path": 0.3}})
        state, blank = plan.build_task().backbone.state_dict(), plan.build_task(blank=True).backbone.state_dict()
    assert plan.config.optimiser.layer_decay == 0.75  # the recipe "finetune"
    assert plan.backbone_config.num_classes == 2
    assert plan.backbone_config.drop_path == 0.3
    assert not torch.equal(state["blocks.0.norm1.weight"], blank["blocks.0.norm1.weight"])
    with warnings.catch_warnings(), pytest.raises(CheckpointError, match="model='vit_small_patch16'"):
        warnings.simplefilter("ignore")
        make_plan(split(photos(20)), start=start, model="vit_small_patch16")
    with warnings.catch_warnings(), pytest.raises(ConfigError, match="depth"):
        warnings.simplefilter("ignore")
        make_plan(split(photos(20)), start=start, changes={"options": {"depth": 3}})


def test_lora_and_freezing_are_applied_and_noted(tmp_path: Path) -> None:
    with pytest.warns(HeadNotice):
        plan = make_plan(split(photos(20)), start=pretrained(tmp_path), changes={"lora": 2})
    assert any(isinstance(module, LoRALinear) for module in plan.build_task().modules())
    assert any("trainable parameters" in note for note in plan.notes)
    plan = make_plan(split(photos(20)), model="vit32_small", changes={"options": OPTIONS, "freeze_until": "blocks.1"})
    assert not plan.build_task().backbone.patch.projection.weight.requires_grad
    assert any("random weights" in note for note in plan.notes)


def test_a_teacher_makes_it_distillation() -> None:
    teacher = tiny("vit32_small", num_classes=2, image_size=(32, 32), patch={"size": 4})
    plan = make_plan(
        split(photos(20)), model="vit32_small", teacher=teacher,
        task={"method": "hard"}, changes={"options": OPTIONS},
    )  # fmt: skip
    task = plan.build_task()
    assert isinstance(task, Distill)
    assert task.config.method == "hard"


def test_a_plan_is_found_again(tmp_path: Path) -> None:
    plan = make_plan(split(photos(20)), model="vit32_small", changes={"options": OPTIONS})
    plan.record(val=None, command="", environment={}).write(tmp_path)
    again = read_plan(tmp_path, data=plan.data)
    assert (again.config, again.model) == (plan.config, plan.model)
    with pytest.raises(TrainingError, match="resume"):
        read_plan(tmp_path)


def test_folders_that_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"run\.json"):
        read_plan(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_plan(tmp_path)


def test_uneven_classes_are_noted_and_corrected_once() -> None:
    data = split(photos(40, size=16))
    data.train.targets["label"] = (torch.arange(40) % 4 == 0).long()
    plan = make_plan(data, changes={"sampling": "balanced"})
    assert any("balanced sampling" in note for note in plan.notes)
    assert plan.config.task.best_metric == "balanced_accuracy"
    assert any("balanced accuracy" in note for note in plan.notes)
    assert plan.build_task().best_metric == "balanced_accuracy"
    for task in ({"class_weights": "inverse"}, {"loss": "logit_adjusted"}):
        with pytest.raises(ConfigError, match="sampling"):
            make_plan(data, task=task, changes={"sampling": "balanced"})
    with pytest.raises(ConfigError, match="group"):
        make_plan(data, group="patient")
    with pytest.raises(ConfigError, match="members"):
        make_plan(data, task={"members": 3})


def test_an_option_that_is_newer_than_a_run_does_not_keep_it_from_being_resumed(tmp_path: Path) -> None:
    plan = make_plan(split(photos(20, size=32)), model="efficientnet_lite0", changes={"image_size": 32})
    older = {name: value for name, value in plan.model["config"].items() if name != "pool_cells"}
    with Logs(tmp_path, silent=True) as logs:
        images = prepare_data(plan, World(), logs)[1].train
    today = replace(plan, model={**plan.model, "config": older}).identity(images)
    saved = plan.identity(images)
    assert differences(completed({**saved, "model": {**plan.model, "config": older}}), today) == []
    assert today == saved
