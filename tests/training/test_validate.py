"""Validation: every image once, nothing learned from it."""

import torch
from small_run import CPU, Toy, packed

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.batches import Batches
from vitrail.training.distributed import World
from vitrail.training.validate import numbers, validate


def test_every_image_counts_once_and_without_dropout() -> None:
    task, images = Toy(dropout=0.5), packed(26)
    task.train()
    feed = Batches(images, batch_size=8, shuffle=False, seed=0, device=CPU)
    prepare = Prepare(AugmentConfig(), image_size=(8, 8), channels=3)
    results = validate(task, feed, prepare, device=CPU, precision="float32", world=World())
    with torch.no_grad():
        right = (task.eval().outputs(prepare(images.images)).argmax(1) == images.labels).float().mean()
    assert abs(results["accuracy"] - right.item()) < 1e-6
    assert not task.training
    assert all(parameter.grad is None for parameter in task.parameters())


def test_numbers_leaves_tables_out() -> None:
    found = numbers({"a": 1, "b": torch.tensor(0.5), "c": torch.zeros(3), "d": "text"})
    assert found == {"a": 1.0, "b": 0.5}
