"""What is frozen stays as it is, bit by bit; what is not learns."""

import pytest
import torch
from registered import pictures, tiny
from torch import nn

from vitrail.errors import ConfigError
from vitrail.tasks.classify import Classify
from vitrail.training.freeze import freeze_until, learning


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
    found = learning(model)
    assert prefixes(found.frozen_names) == frozen
    everything = {"patch", "prefix", "position", "blocks.0", "blocks.1", "norm", "head", "distillation_head"}
    assert prefixes(found.learning_names) == everything - frozen


def test_parts_of_a_block():
    found = learning(freeze_until(tiny(), "blocks.1.mlp"))
    assert "blocks.1.norm2.weight" in found.frozen_names
    assert "blocks.1.attention.qkv.weight" in found.frozen_names
    assert "blocks.1.mlp.fc1.weight" in found.learning_names


def test_a_step_leaves_the_frozen_part_alone():
    task = freeze_until(Classify(tiny(), classes="abcde"), "blocks.1").train()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    optimiser = torch.optim.AdamW(task.parameters(), lr=0.1, weight_decay=0.1)
    nn.functional.cross_entropy(task.outputs(pictures(task.backbone, 5)), torch.arange(5)).backward()
    optimiser.step()
    moved = {name for name, value in task.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == set(learning(task).learning_names)


def test_running_statistics_of_the_frozen_part_stay():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    freeze_until(model, "2").train()
    model(torch.randn(4, 1, 3, 3))
    assert torch.equal(model[1].running_mean, torch.zeros(2))
    assert not torch.equal(model[3].running_mean, torch.zeros(2))


def test_the_summary_counts_by_hand():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert learning(freeze_until(model, "1"))[:2] == (10, 16)
    assert str(learning(model)) == "10 of 26 parameters learn (38.5 %), from 1.weight on"
    assert str(learning(nn.Linear(3, 4))) == "16 of 16 parameters learn"
    assert str(learning(nn.Linear(3, 4).requires_grad_(False))) == "0 of 16 parameters learn"


@pytest.mark.parametrize(("name", "hint"), [("block.1", "'blocks.1'"), ("blocks.12", "blocks.1"), ("", "known: ")])
def test_an_unknown_part_is_refused_with_the_nearest(name, hint):
    model = tiny()
    with pytest.raises(ConfigError, match=f"no part {name!r} to freeze until; .*{hint}"):
        freeze_until(model, name)
    assert learning(model).frozen == 0
