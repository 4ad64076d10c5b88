"""Validation: every image once, nothing learned from it."""

import torch
from support.small_run import CPU, SEEN, Toy, packed

from vitrail.data.feeds.batches import Batches
from vitrail.training.distributed import World
from vitrail.training.validate import validate


def test_every_image_counts_once_and_without_dropout() -> None:
    task, images = Toy(dropout=0.5), packed(26)
    task.train()
    feed = Batches(images, batch_size=8, shuffle=False, seed=0, device=CPU)
    results = validate(task, feed, SEEN, device=CPU, precision="float32", world=World())
    with torch.no_grad():
        right = (task.eval().outputs(SEEN(images.images))["logits"].argmax(1) == images.targets["label"]).float().mean()
    assert abs(results["accuracy"] - right.item()) < 1e-6
    assert not task.training
    assert all(parameter.grad is None for parameter in task.parameters())
