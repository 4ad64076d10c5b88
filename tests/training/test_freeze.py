"""What is frozen stays as it is, bit by bit; what is not learns."""

import pytest
import torch
from support.registered import pictures, tiny
from support.small_tasks import classifier, logits
from torch import nn

from vitrail.errors import ConfigError
from vitrail.training.freeze import freeze_until, trainable


def prefixes(names):
    return {name.split(".")[0] if not name.startswith("blocks") else ".".join(name.split(".")[:2]) for name in names}


@pytest.mark.parametrize(
    ("until", "frozen"),
    [
        ("patch", set()),
        ("blocks.0", {"patch", "prefix", "position"}),
        ("blocks.1", {"patch", "prefix", "position", "blocks.0"}),
        ("norm", {"patch", "prefix", "position", "blocks.0", "blocks.1"}),
        ("head", {"patch", "prefix", "position", "blocks.0", "blocks.1", "norm"}),
    ],
)
def test_all_that_runs_before_is_frozen_and_the_rest_learns(until, frozen):
    model = tiny("deit_tiny_distilled_patch16")
    assert freeze_until(model, until) is model
    found = trainable(model)
    everything = {"patch", "prefix", "position", "blocks.0", "blocks.1", "norm", "head", "distillation_head"}
    assert prefixes(found.trained_names) == everything - frozen


def test_parts_of_a_block():
    found = trainable(freeze_until(tiny(), "blocks.1.mlp"))
    assert "blocks.1.norm2.weight" not in found.trained_names
    assert "blocks.1.attention.qkv.weight" not in found.trained_names
    assert "blocks.1.mlp.fc1.weight" in found.trained_names


def test_a_step_leaves_the_frozen_part_alone():
    task = freeze_until(classifier(), "blocks.1").train()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    optimiser = torch.optim.AdamW(task.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(logits(task, pictures(task.backbone, 5)), torch.arange(5)).backward()
    optimiser.step()
    moved = {name for name, value in task.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == set(trainable(task).trained_names)


def test_running_statistics_of_the_frozen_part_stay():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    freeze_until(model, "2").train()
    model(torch.randn(4, 1, 3, 3))
    assert torch.equal(model[1].running_mean, torch.zeros(2))
    assert not torch.equal(model[3].running_mean, torch.zeros(2))


def test_the_summary_counts_by_hand():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert trainable(freeze_until(model, "1"))[:2] == (10, 16)
    assert str(trainable(model)) == "trainable parameters: 10 of 26 (38.5 %), from 1.weight on"
    assert str(trainable(nn.Linear(3, 4))) == "trainable parameters: 16 of 16"
    assert str(trainable(nn.Linear(3, 4).requires_grad_(False))) == "trainable parameters: 0 of 16"


@pytest.mark.parametrize(("name", "hint"), [("block.1", "'blocks.1'"), ("blocks.12", "blocks.1"), ("", "blocks")])
def test_an_unknown_part_is_refused_with_the_nearest(name, hint):
    model = tiny()
    with pytest.raises(ConfigError, match=hint):
        freeze_until(model, name)
    assert trainable(model).frozen == 0
