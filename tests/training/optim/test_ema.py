"""The average of the weights: its values, its warm-up, and that it can stand in for the weights."""

import pytest
import torch
from torch import nn

from vitrail.training.optim.ema import Average


def module() -> nn.Module:
    made = nn.BatchNorm1d(2)
    nn.init.constant_(made.weight, 0.0)
    return made


def test_values_worked_out_by_hand() -> None:
    made = module()
    average = Average(made, decay=0.9)
    for target in (1.0, 2.0):
        nn.init.constant_(made.weight, target)
        average.update()
    # Decays 2/11 and 3/12: 0 -> 9/11, then 9/11 * 3/12 + 2 * 9/12.
    assert average.values["weight"][0].item() == pytest.approx(9 / 11 * 3 / 12 + 2 * 9 / 12, abs=1e-6)
    assert average.updates == 2


def test_the_decay_stops_growing_at_its_limit() -> None:
    made = module()
    average = Average(made, decay=0.5)
    average.updates = 1000
    nn.init.constant_(made.weight, 1.0)
    average.update()
    assert average.values["weight"][0].item() == 0.5


def test_buffers_follow_too() -> None:
    made = module()
    average = Average(made, decay=0.5)
    average.updates = 1000
    made.running_mean.fill_(4.0)
    made.num_batches_tracked.fill_(7)
    average.update()
    assert average.values["running_mean"].tolist() == [2.0, 2.0]
    assert average.values["num_batches_tracked"].item() == 7


def test_applied_swaps_and_gives_back_even_after_an_error() -> None:
    made = module()
    average = Average(made, decay=0.5)
    nn.init.constant_(made.weight, 3.0)
    parameter = made.weight

    def fail() -> None:
        with average.applied():
            assert made.weight.tolist() == [0.0, 0.0]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert made.weight is parameter
    assert made.weight.tolist() == [3.0, 3.0]
    assert average.values["weight"].tolist() == [0.0, 0.0]


def test_frozen_parameters_take_no_memory() -> None:
    made = module()
    made.bias.requires_grad_(requires_grad=False)
    assert "bias" not in Average(made, decay=0.5).values


def test_values_are_copies() -> None:
    made = module()
    average = Average(made, decay=0.5)
    with torch.no_grad():
        made.weight.add_(1)
    assert average.values["weight"].tolist() == [0.0, 0.0]
