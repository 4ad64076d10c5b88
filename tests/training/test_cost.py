"""What training a model would cost on this machine."""

from types import SimpleNamespace

import pytest
import torch

import vitrail
from vitrail.training import cost
from vitrail.training.cost import training_cost, training_speed


def test_the_cost_of_training_grows_with_the_image() -> None:
    small, large = training_cost("vit_tiny_patch16"), training_cost("vit_tiny_patch16", 448)
    assert small.image_size == (224, 224)
    assert large.image_size == (448, 448)
    assert small.numbers.fixed == 4 * 4 * sum(p.numel() for p in vitrail.create("vit_tiny_patch16").parameters())
    assert large.numbers.per_image > 3.9 * small.numbers.per_image
    assert small.numbers.memory > 2**30


def test_the_speed_counts_the_images_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 50.0, 100.0, 102.0])  # the first pass, which warms up, takes 50 seconds, the second 2
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    assert training_speed("vit32_small", device=torch.device("cpu")) == 4 / 2
