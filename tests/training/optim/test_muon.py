"""Muon: its steps are orthogonal, and the rest of the parameters move as AdamW moves them."""

from pathlib import Path

import pytest
import torch
from support.small_run import Toy, resumed, small_loop

from vitrail.errors import TrainingError
from vitrail.files import digest, write_tensors
from vitrail.models.checkpoint.files import read
from vitrail.training.config import OptimiserConfig
from vitrail.training.optim.muon import Muon, orthogonal
from vitrail.training.optim.optimiser import build


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 12)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.4
    assert values.max() < 1.4
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close(orthogonal(left @ right), orthogonal(3 * left @ right))  # the scale is forgotten
    nearest = left @ right
    cosine = (orthogonal(matrices) * nearest).sum() / orthogonal(matrices).norm() / nearest.norm()
    assert cosine > 0.9


def both() -> tuple[Toy, Toy, torch.optim.Optimizer, torch.optim.Optimizer]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Toy())
    config = OptimiserConfig(lr=1e-2, weight_decay=0.1)
    adamw = build(models[0], config, torch.device("cpu"))
    muon = build(models[1], OptimiserConfig(kind="muon", lr=1e-2, weight_decay=0.1), torch.device("cpu"))
    for model, optimiser in zip(models, (adamw, muon), strict=True):
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
        optimiser.step()
    return models[0], models[1], adamw, muon


def test_only_matrices_of_blocks_are_turned():
    plain, turned, _, muon = both()
    assert isinstance(muon, Muon)
    moved = [name for name, p in turned.named_parameters() if not torch.equal(p, plain.get_parameter(name))]
    assert moved
    assert all("blocks." in name and name.endswith("weight") and "norm" not in name for name in moved)
    assert any(name.endswith("qkv.weight") for name in moved)


def test_queries_keys_and_values_are_turned_each_on_their_own():
    _, turned, _, muon = both()
    name, weight = next((n, p) for n, p in turned.named_parameters() if n.endswith("qkv.weight"))
    torch.manual_seed(0)
    before = Toy().get_parameter(name).detach()
    step = (before * (1 - 1e-2 * 0.1) - weight.detach()) / (1e-2 * 0.2 * weight.shape[1] ** 0.5)
    for part in step.chunk(3):
        assert torch.linalg.svdvals(part).max() < 1.4
        assert torch.linalg.svdvals(part).mean() > 0.6
    assert "momentum" in muon.state[weight]


def test_convolutions_are_turned_but_not_the_one_that_reads_pixels_nor_those_of_single_channels():
    mlp = {"kind": "conv_mlp"}
    model = Toy(patch={"kind": "conv", "halvings": 2}, class_token=False, pool="mean", mlp=mlp)
    optimiser = build(model, OptimiserConfig(kind="muon"), torch.device("cpu"))
    turned = {name for group in optimiser.param_groups if group["matrices"] for name in group["names"]}
    convolutions = {name for name, parameter in model.named_parameters() if parameter.ndim == 4}
    assert convolutions & turned == {"backbone.patch.steps.1.conv.weight", "backbone.patch.projection.weight"}
    single = {name for name in convolutions - turned if model.get_parameter(name).shape[1] == 1}
    assert convolutions - turned == single | {"backbone.patch.steps.0.conv.weight"}
    assert single
    weight = model.get_parameter("backbone.patch.steps.1.conv.weight")
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    step = (before * (1 - 1e-3 * 0.05) - weight.detach()).flatten(1)  # 32 x 144
    values = torch.linalg.svdvals(step / (1e-3 * 0.2 * step.shape[1] ** 0.5))
    assert values.min() > 0.4
    assert values.max() < 1.4


def test_a_checkpoint_without_momentum_is_refused_in_one_sentence(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, optimiser={"kind": "muon"}, ema=None)
    loop.run(until=1)
    file = loop.save()
    weights = read(file)
    header = weights.metadata["run"].partition(" ")[2]
    tensors = {name: tensor for name, tensor in weights.tensors.items() if not name.endswith(".momentum")}
    write_tensors(file, tensors, {"run": f"{digest(header, tensors)} {header}"})  # as it was once written
    with pytest.raises(TrainingError, match=r"step-000000001\.safetensors lacks optimiser\.backbone\..*\.momentum"):
        resumed(tmp_path, optimiser={"kind": "muon"}, ema=None)
