"""Runs and checkpoints opened again, and what training a model would cost."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vitrail
import vitrail.training.trained as trained_module
from vitrail.config import to_dict
from vitrail.data.augment import AugmentConfig
from vitrail.training.trained import open_trained, training_cost, training_pace

TINY = {"dim": 32, "depth": 1, "num_heads": 2, "num_classes": 2}


def test_a_run_brings_its_normalisation_and_thresholds(tmp_path: Path) -> None:
    model = vitrail.create("vit32_small", **TINY)
    model.labels = ("cat", "dog")
    vitrail.save(model, tmp_path)
    augment = AugmentConfig(mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5))
    run = {"classes": ["cat", "dog"], "multi_label": True, "recipe": {"augment": to_dict(augment)}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "best.json").write_text(json.dumps({"thresholds": [0.3, 0.6]}))
    trained = open_trained(tmp_path)
    assert trained.multi_label
    assert trained.augment == augment
    black = trained.prepare(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    torch.testing.assert_close(black[0, :, 0, 0], torch.tensor([-0.2, -0.4, -0.6]))
    assert trained.task.classes == ("cat", "dog")


def test_a_plain_checkpoint_has_the_usual_ones(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("vit32_small", **TINY), tmp_path)
    trained = open_trained(tmp_path)
    assert trained.task.classes == ("0", "1")
    white = trained.prepare(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))
    torch.testing.assert_close(white, torch.ones(1, 3, 32, 32))


def test_the_cost_of_training_grows_with_the_image() -> None:
    small, large = training_cost("vit_tiny_patch16"), training_cost("vit_tiny_patch16", 448)
    assert small.image_size == (224, 224)
    assert large.image_size == (448, 448)
    assert small.numbers.fixed == 4 * 4 * sum(p.numel() for p in vitrail.create("vit_tiny_patch16").parameters())
    assert large.numbers.per_image > 3.9 * small.numbers.per_image
    assert small.numbers.memory > 2**30


def test_the_pace_of_training_counts_the_images_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 50.0, 100.0, 102.0])  # the first pass, which warms up, takes 50 seconds, the second 2
    monkeypatch.setattr(trained_module, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    assert training_pace("vit32_small", device=torch.device("cpu")) == 4 / 2
