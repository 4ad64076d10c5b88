"""What speed is measured on: a real step changes the weights, a forward pass does not."""

import pytest
import torch

from vitrail.models.registry import create
from vitrail.profiling.training_step import make_step


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_only_training_changes_weights(mode: str) -> None:
    model = create("vit32_small", dim=32, depth=1, num_heads=2)
    before = [value.clone() for value in model.parameters()]
    make_step(model, torch.rand(2, 3, 32, 32), mode=mode, precision="float32")()
    same = all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert same == (mode == "infer")
