"""What speed is measured on: a real step changes the weights, a forward pass does not."""

import pytest
import torch
from support.eight_bits import needs_products

from vitrail.layers.fp8 import Fp8Linear, FrozenFp8Linear
from vitrail.models.registry import create
from vitrail.profiling.training_step import make_step


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_only_training_changes_weights(mode: str) -> None:
    model = create("vit32_small", dim=32, depth=1, num_heads=2)
    before = [value.clone() for value in model.parameters()]
    make_step(model, torch.rand(2, 3, 32, 32), mode=mode, precision="float32")()
    same = all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert same == (mode == "infer")


@needs_products
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_weights_are_rounded_once_for_inference_alone(mode: str, precision: str) -> None:
    model = create("vit32_small", dim=32, depth=1, num_heads=2)
    outputs = make_step(model, torch.rand(2, 3, 32, 32), mode=mode, precision=precision)()
    assert isinstance(outputs, torch.Tensor)
    assert outputs.isfinite().all()
    kept = {value.dtype for value in model.parameters()}
    assert kept == ({torch.float32} if mode == "train" else {torch.bfloat16})
    layer = Fp8Linear if mode == "train" else FrozenFp8Linear
    assert isinstance(model.get_submodule("blocks.0.mlp.fc1"), layer) == (precision == "fp8")
