"""The task: every head learns, class weights, windows for larger images, pictures that are learned by heart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.registered import tiny

from vitrail.data.dataset import Batch
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.models.heads import EomtConfig, LinearSegmenterConfig, SegFormerConfig, SetrConfig, UNetConfig
from vitrail.tasks.segment import Segment, SegmentConfig
from vitrail.training.run import train

SCHEMA = {"mask": MaskTarget(classes=("sky", "road", "car"))}
HEADS = [
    LinearSegmenterConfig(),
    SetrConfig(dim=8, decoder="naive"),
    SetrConfig(dim=8),
    UNetConfig(widths=(8, 8), detail=4),
    SegFormerConfig(dim=8),
]


def task_of(head: Any = HEADS[-1], name: str = "vit_tiny_patch16", **options: Any) -> Segment:
    torch.manual_seed(0)
    return SegmentConfig(head=head, **options).build(tiny(name, num_classes=0), SCHEMA)


def batch_of(task: Segment, count: int = 2) -> Batch:
    height, width = task.backbone.config.image_size
    mask = torch.randint(3, (count, height, width)).to(torch.uint8)
    mask[:, :3] = 255
    return Batch(torch.randn(count, 3, height, width), {"mask": mask}, torch.arange(count))


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "resnet18", "pvt_v2_b0"])
@pytest.mark.parametrize("head", HEADS, ids=["linear", "naive", "pup", "unet", "segformer"])
def test_every_parameter_of_the_head_learns(head: Any, name: str) -> None:
    task = task_of(head, name, dice=1.0, lovasz=0.5)
    losses = task.train()(batch_of(task))
    losses["loss"].backward()
    assert losses.keys() == {"loss", "cross_entropy", "dice_loss", "lovasz_loss"}
    assert losses["loss"].item() == pytest.approx(
        sum(
            weight * losses[part].item()
            for part, weight in (("cross_entropy", 1), ("dice_loss", 1), ("lovasz_loss", 0.5))
        )
    )
    assert [name for name, one in task.head.named_parameters() if one.grad is None] == []


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "resnet18"])
def test_an_auxiliary_head_is_for_training_alone(name: str) -> None:
    task = task_of(name=name, auxiliary=0.4, ohem=0.25)
    losses = task.train()(batch_of(task))
    losses["loss"].backward()
    assert losses.keys() == {"loss", "cross_entropy", "auxiliary_loss"}
    total = losses["cross_entropy"].item() + 0.4 * losses["auxiliary_loss"].item()
    assert losses["loss"].item() == pytest.approx(total)
    assert [name for name, one in task.named_parameters() if one.grad is None and "backbone" not in name] == []
    images = batch_of(task).images
    with_it = task.eval().outputs(images)
    task.auxiliary = None
    assert torch.equal(task.outputs(images)["confidence"], with_it["confidence"])


def test_queries_learn_from_sets() -> None:
    task = task_of(EomtConfig(queries=6, blocks=1, upscale=1)).train()
    losses = task(batch_of(task))
    losses["loss"].backward()
    assert losses.keys() == {"loss"}
    assert [name for name, one in task.named_parameters() if one.grad is None] == []
    assert not task.capturable
    outputs = task.eval().outputs(batch_of(task).images)
    assert outputs["classes"].shape == (2, *task.backbone.config.image_size)
    assert task.explained()(batch_of(task).images).shape == (2, 3)


def test_rare_classes_weigh_more() -> None:
    task = task_of(balance=1.0)
    masks = torch.zeros(4, 10, 10, dtype=torch.uint8)
    masks[:, 0] = 1
    masks[:, 1, :5] = 255
    task.fit({"mask": masks})
    assert task.weights[1] / task.weights[0] == pytest.approx(85 / 10, rel=1e-3)
    assert task.weights[2] > task.weights[1]
    plain = task_of()
    plain.fit({"mask": masks})
    assert plain.weights.tolist() == [1, 1, 1]


def test_larger_images_are_seen_in_windows() -> None:
    task = task_of().eval()
    height, width = task.backbone.config.image_size
    images = torch.randn(1, 3, height, width)
    whole = task.outputs(images.repeat(1, 1, 2, 1))
    assert whole["classes"].shape == (1, 2 * height, width)
    logits = task.logits(images)
    torch.testing.assert_close(
        task.logits(torch.cat([images, images], dim=3))[..., : width // 4], logits[..., : width // 4]
    )


def test_errors_and_the_largest_class() -> None:
    task = task_of()
    truth = torch.zeros(3, 4, 4, dtype=torch.uint8)
    truth[2] = 255
    found = torch.zeros(3, 4, 4)
    found[1, :3] = 2
    outputs = {"classes": found, "confidence": torch.ones(3, 4, 4)}
    assert task.errors(outputs, {"mask": truth}).tolist() == [0, 0.75, 0]
    assert task.likeliest(outputs).tolist() == [0, 2, 0]


def test_learns_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    chance, lines = np.random.default_rng(0), ["path,mask"]
    for number in range(4):
        pixels, mask = chance.normal(40, 8, (48, 64, 3)), np.zeros((48, 64), np.uint8)
        for label, colour in ((1, (220, 60, 60)), (2, (60, 200, 80))):
            y, x = chance.integers(0, 24), chance.integers(0, 40)
            pixels[y : y + 24, x : x + 24], mask[y : y + 24, x : x + 24] = colour, label
        for name, values in (("image", pixels.clip(0, 255).astype(np.uint8)), ("mask", mask)):
            Image.fromarray(values).save(tmp_path / f"{name}{number}.png")
        lines.append(f"image{number}.png,mask{number}.png")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    model = {"dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4]}
    run = train(
        table, val=table, task={"kind": "segment", "head": {"kind": "segformer", "dim": 32}}, model="pvt_v2_b0",
        options=model, image_size=(48, 64), batch_size=4, epochs=60, eval_every=60, save_every=60, device="cpu",
        optimiser={"lr": 3e-3}, schedule={"warmup_epochs": 2}, augment={"crop": "none", "flip": False},
        folder=tmp_path / "run", silent=True,
    )  # fmt: skip
    assert run.metrics["miou"] > 0.75, run.metrics


def test_a_class_is_followed_in_its_region() -> None:
    task = task_of().eval()
    images = torch.randn(1, 3, *task.backbone.config.image_size)
    with torch.no_grad():
        outputs = task.outputs(images)
        shares = task.head(task.head.read(task.backbone, images)).softmax(dim=1)
        everywhere = task.explained_for({"classes": torch.zeros_like(outputs["classes"])})
        assert float(everywhere(images).sigmoid()[0, 0]) == pytest.approx(float(shares[0, 0].mean()), abs=1e-4)
        assert everywhere(images.repeat(3, 1, 1, 1)).shape == (3, len(task.classes))
        classes = outputs["classes"].round().long()
        part = task.explained_part(outputs, classes[:, 0, 0], task.backbone.config.image_size)
        assert torch.equal(part, classes == classes[0, 0, 0])
