from dataclasses import replace

import pytest
import torch

from vitrail.lab.fitting import Fit
from vitrail.lab.long_range import _MODELS, _TASKS, LongRange, LongRangeSettings, _built
from vitrail.lab.small_models import macs

SETTINGS = (LongRange.quick, LongRange.full)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def sees(name: str, settings: LongRangeSettings) -> int:
    """The width of the pixels that one place of the last map of a CNN depends on, from gradients."""
    body, _ = _built(name, settings, 2)
    for module in body.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # branches that start at zero show nothing
    side = 16 * settings.side
    images = torch.randn(1, 1, side, side, requires_grad=True)
    maps = body.eval()[:-3](images)
    middle = maps.shape[2] // 2
    maps[:, :, middle, middle].sum().backward()
    assert images.grad is not None
    columns = images.grad.abs().sum(dim=(0, 1, 2)).nonzero().flatten()
    return int(columns[-1] - columns[0] + 1)


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_cnn_sees_both_parts_at_once_and_one_does_not(settings: LongRangeSettings) -> None:
    assert sees("local", settings) <= 4 * (settings.distance - 1) + 1  # the pixels between the marks, and one more
    assert sees("wide", settings) >= 4 * (settings.distance + 1)


@pytest.mark.parametrize("settings", SETTINGS)
def test_costs_are_about_equal(settings: LongRangeSettings) -> None:
    side = 4 * settings.side
    costs = [macs(_built(name, settings, 4)[0], (1, side, side)) for name in _MODELS]
    assert max(costs) < 1.25 * min(costs)


def test_a_tiny_run_has_every_model_and_task() -> None:
    few = Fit(steps=2, batch=8)
    settings = replace(LongRange.quick, dim=16, depth=1, wide=(4, 4, 4), local=(4,), test=20, looks=2, vit=few, cnn=few)
    found = LongRange().measure(settings, seed=0, device=torch.device("cpu"))
    for name in _MODELS:
        for task in _TASKS:
            assert 0 <= found[name][task]["accuracy"] <= 1
            assert found[name][task]["steps"] == [1, 2]
    assert found["chance"] == {"mark": 1 / 3, "row": 1 / 3, "hidden": 0.5}
