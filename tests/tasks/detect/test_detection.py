"""The task: options, notes, boxes in pixels, thresholds, and pictures that are learned by heart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.drawn_boxes import rectangles
from support.registered import tiny

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.errors import ConfigError, Notice
from vitrail.models.heads import DeformableDetrConfig, DetrConfig, RtDetrConfig
from vitrail.tasks.detect import Detect, DetectConfig
from vitrail.training.run import train

SMALL = {"dim": 16, "num_heads": 2, "hidden": 24, "encoder_depth": 1, "decoder_depth": 2, "queries": 6}
SCHEMA = {"boxes": BoxesTarget(classes=("cat", "dog"), most=3)}


def task_of(head: Any = None, **options: Any) -> Detect:
    torch.manual_seed(0)
    config = DetectConfig(head=head or DeformableDetrConfig(**SMALL, levels=2, denoising=4), **options)
    return config.build(tiny("resnet18", num_classes=0), SCHEMA)


def batch_of(task: Detect, count: int = 2) -> Batch:
    height, width = task.backbone.config.image_size
    values = torch.zeros(count, 3, 7)
    values[..., 4] = -1
    values[:, 1, :5] = torch.tensor([0.1 * width, 0.2 * height, 0.5 * width, 0.9 * height, 1])
    return Batch(torch.randn(count, 3, height, width), {"boxes": values}, torch.arange(count))


@pytest.mark.parametrize(
    "head",
    [
        None,
        DetrConfig(**SMALL),
        DeformableDetrConfig(**SMALL, two_stage=False, denoising=0),
        DeformableDetrConfig(**SMALL, extra_queries=4, repeat=2),
        RtDetrConfig(**SMALL),
    ],
    ids=["default", "detr", "one stage", "extra queries", "rt_detr"],
)
def test_every_parameter_learns(head: Any) -> None:
    task = task_of(head).train()
    losses = task(batch_of(task))
    losses["loss"].backward()
    assert losses.keys() == {"loss", "class_loss", "box_loss", "giou_loss"}
    lacking = [name for name, one in task.named_parameters() if one.grad is None]
    assert lacking == []


def test_boxes_are_in_pixels() -> None:
    task = task_of(most=5).eval()
    outputs = task.outputs(batch_of(task).images)
    height, width = task.backbone.config.image_size
    assert outputs["boxes"].shape == (2, 5, 4)
    assert bool((outputs["boxes"] <= torch.tensor([width, height, width, height])).all())
    assert outputs["boxes"][..., 2].max() > 1
    assert bool((outputs["scores"].diff(dim=1) <= 0).all())


def test_the_threshold_is_adopted() -> None:
    task = task_of().eval()
    outputs = task.outputs(batch_of(task).images)
    task.adopt({"threshold": 0.0})
    assert len(task.decode(outputs)[0].boxes) == 12, "six queries, two classes"
    task.load_state({"threshold": 1.0})
    assert task.decode(outputs)[0].text() == "no boxes"
    assert task.state() == {"threshold": 1.0}


def test_explaining_a_box_below_the_threshold_is_said() -> None:
    task = task_of().eval()
    outputs = task.outputs(batch_of(task, 1).images)
    assert task.explain_target(outputs, None).tolist() == [0]
    task.adopt({"threshold": 0.0})
    assert task.explain_target(outputs, "box 1").tolist() == [1]
    task.adopt({"threshold": 1.0})
    with pytest.warns(Notice, match="box 1.*below the threshold"):
        task.explain_target(outputs, "box 1")


@pytest.mark.parametrize(("name", "word"), [("dog", "a class"), ("box 99", "not a box")])
def test_what_is_not_a_box_cannot_be_explained(name: str, word: str) -> None:
    task = task_of().eval()
    outputs = task.outputs(batch_of(task, 1).images)
    with pytest.raises(ConfigError, match=f"{word}.*box 0"):
        task.explain_target(outputs, name)


def test_images_that_were_not_annotated_have_no_error() -> None:
    task = task_of().eval()
    batch = batch_of(task)
    batch.targets["boxes"][0, :, 4] = -2
    errors = task.errors(task.outputs(batch.images), batch.targets)
    assert errors.tolist() == [0, 1]


def test_more_objects_than_queries_are_said() -> None:
    schema = {"boxes": BoxesTarget(classes=("cat",), most=7)}
    config = DetectConfig(head=DeformableDetrConfig(**SMALL))
    *_, notes = config.adapt(schema, AugmentConfig(), MixConfig())
    assert any("queries" in note for note in notes)
    *_, notes = config.adapt(SCHEMA, AugmentConfig(), MixConfig())
    assert notes == []


def test_a_loss_that_does_not_fit_the_head() -> None:
    with pytest.raises(ConfigError, match="focal"):
        DetectConfig(class_loss="softmax")


def learned(folder: Path, count: int, epochs: int, size: tuple[int, int]) -> dict[str, float]:
    """Trains a tiny model on a few pictures, and evaluates it on the same."""
    data = rectangles(folder, count, size=size)
    head = {"kind": "deformable_detr", "dim": 64, "num_heads": 4, "hidden": 128, "encoder_depth": 1, "levels": 3}
    head |= {"decoder_depth": 2, "queries": 20, "denoising": 20}
    model = {"dims": [16, 32, 64, 96], "depths": [1, 1, 1, 1], "stem_dim": 16}
    run = train(
        data, val=data, task={"kind": "detect", "head": head}, model="resnet18", options=model, image_size=size,
        batch_size=min(count, 4), epochs=epochs, eval_every=epochs, save_every=epochs, schedule={"warmup_epochs": 2},
        optimiser={"lr": 1e-3, "weight_decay": 1e-4, "clip": 0.5}, augment={"crop": "none", "flip": False},
        folder=folder / "run", device="cpu", silent=True,
    )  # fmt: skip
    return run.metrics


def test_learns_two_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    metrics = learned(tmp_path, 2, 60, (48, 64))
    assert metrics["ap50"] > 0.5, metrics


@pytest.mark.slow
def test_learns_eight_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    metrics = learned(tmp_path, 8, 120, (96, 128))
    assert metrics["ap50"] > 0.95, metrics
    assert metrics["ap"] > 0.75, metrics


def test_decoding_agrees_with_itself() -> None:
    task = task_of().eval()
    arrays = {name: values.detach().numpy() for name, values in task.outputs(batch_of(task).images).items()}
    assert task.agreement(arrays, arrays).agreement == 1
    assert np.array_equal(task.same(arrays, arrays), [True, True])
