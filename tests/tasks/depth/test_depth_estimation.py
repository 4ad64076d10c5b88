"""The task: the usual distance, every parameter learns, pictures that are learned by heart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.registered import tiny

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.models.heads import DptConfig
from vitrail.tasks.depth import Depth, DepthConfig
from vitrail.training.run import train

SCHEMA = {"depth": DepthTarget()}


def task_of(name: str = "vit_tiny_patch16") -> Depth:
    torch.manual_seed(0)
    return DepthConfig(head=DptConfig(dim=8, widths=(4, 4, 4, 4))).build(tiny(name, num_classes=0), SCHEMA)


def batch_of(task: Depth) -> Batch:
    height, width = task.backbone.config.image_size
    return Batch(torch.randn(2, 3, height, width), {"depth": torch.rand(2, height, width) * 5}, torch.arange(2))


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "resnet18"])
def test_every_parameter_of_the_head_learns(name: str) -> None:
    task = task_of(name).train()
    task(batch_of(task))["loss"].backward()
    assert [name for name, one in task.head.named_parameters() if one.grad is None] == []


def test_a_new_model_starts_at_the_usual_distance() -> None:
    task = task_of().eval()
    task.fit({"depth": torch.tensor([[[0.0, 30.0], [30.0, 50.0]], [[0.0, 0.0], [0.0, 0.0]]])})
    assert task.state() == {"scale": 30.0}
    other = task_of()
    other.load_state(task.state())
    depth = other.eval().outputs(batch_of(task).images)["depth"]
    assert 5 < depth.median().item() < 200


def test_relative_depth_is_chosen_by_scaled_distances() -> None:
    assert task_of().best_metric == "delta1"
    for options in ({"zooms": True}, {"best_metric": "delta1_aligned"}):
        task = DepthConfig(**options).build(None, SCHEMA)
        assert (task.best_metric, task.tie_metric) == ("delta1_aligned", "abs_rel_aligned")
        assert {task.best_metric, task.tie_metric} <= task.about_metrics.keys()
    assert DepthConfig(zooms=True, best_metric="delta1").build(None, SCHEMA).best_metric == "delta1"


def test_errors_and_agreement() -> None:
    task = task_of()
    truth = torch.ones(2, 2, 2)
    truth[1] = 0
    assert task.errors({"depth": torch.full((2, 2, 2), 1.5)}, {"depth": truth}).tolist() == [0.5, 0]
    arrays = {"depth": np.ones((2, 2, 2))}
    assert task.agreement(arrays, {"depth": np.full((2, 2, 2), 1.005)}).agreement == 1
    assert task.agreement(arrays, {"depth": np.full((2, 2, 2), 1.05)}).agreement == 0


def test_learns_pictures_by_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    chance, lines = np.random.default_rng(0), ["path,depth"]
    for number in range(4):
        pixels, depth = chance.normal(40, 8, (48, 64, 3)), np.full((48, 64), 8000, np.uint16)
        y, x = chance.integers(0, 24), chance.integers(0, 40)
        pixels[y : y + 24, x : x + 24], depth[y : y + 24, x : x + 24] = (220, 60, 60), 2000
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / f"image{number}.png")
        Image.fromarray(depth).save(tmp_path / f"depth{number}.png")
        lines.append(f"image{number}.png,depth{number}.png")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    run = train(
        table, val=table, task={"kind": "depth", "head": {"kind": "dpt", "dim": 16}}, model="resnet18",
        options={"dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "stem_dim": 8}, image_size=(48, 64), batch_size=4,
        epochs=40, eval_every=40, save_every=40, device="cpu", optimiser={"lr": 5e-3}, schedule={"warmup_epochs": 2},
        augment={"crop": "none", "flip": False}, folder=tmp_path / "run", silent=True,
    )  # fmt: skip
    assert run.metrics["delta1"] > 0.85, run.metrics
    assert run.metrics["abs_rel"] < 0.3, run.metrics


def test_distances_are_not_zoomed() -> None:
    schema = {"depth": DepthTarget()}
    mosaic, plain = AugmentConfig(mosaic=0.5), AugmentConfig(crop="shift")
    _, augment, _, notes = DepthConfig().adapt(schema, mosaic, MixConfig())
    assert (augment.crop, augment.mosaic) == ("none", 0.0)
    assert "zooms" in notes[-1]
    assert DepthConfig().adapt(schema, plain, MixConfig())[1] == plain
    assert DepthConfig(zooms=True).adapt(schema, mosaic, MixConfig())[1] == mosaic
