import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from vitrail.lab.cue_conflict import CLASSES
from vitrail.lab.fitting import Fit
from vitrail.lab.shape_bias import ShapeBias, ShapeBiasSettings, _followed
from vitrail.lab.small_models import macs, small_cnn, small_vit


class First(nn.Module):
    """Answers with the class that stands in the first pixel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """B 1 H W -> B 4."""
        return nn.functional.one_hot(images[:, 0, 0, 0].long(), 4).float()


def test_shares_of_each_cue_by_hand() -> None:
    images = torch.tensor([0.0, 1.0, 2.0, 3.0]).view(4, 1, 1, 1)
    found = _followed(First(), images, torch.tensor([0, 1, 0, 0]), torch.tensor([1, 2, 2, 1]))
    assert (found["shape"], found["texture"]) == (0.5, 0.25)
    assert math.isclose(found["bias"], 0.375 / (0.375 + 0.125))  # a quarter are guesses among two classes


def test_guesses_follow_neither_cue() -> None:
    torch.manual_seed(0)
    images = torch.randint(4, (4000, 1, 1, 1)).float()
    classes = torch.arange(4000) % 4
    found = _followed(First(), images, classes, (classes + 1) % 4)
    assert found["shape"] > 0.2
    assert abs(found["shape"] - found["texture"]) < 0.03


def test_models_that_both_follow_one_cue_nearly_always_decide_nothing() -> None:
    for bias in (0.01, 0.99):
        (made,) = ShapeBias().true_case()
        both = {**made, "vit": made["vit"] | {"bias": [bias]}, "cnn": made["cnn"] | {"bias": [bias]}}
        verdict = ShapeBias().verdict([both, both])
        assert verdict.outcome == "undecided"
        assert "follow the same cue" in verdict.text


def test_contrasts_at_which_one_cue_decides_do_not_count() -> None:
    made = {"contrasts": [1.0, 0.3, 0.1]}
    for name, shares in (("vit", [0.01, 0.4, 0.99]), ("cnn", [0.02, 0.2, 0.98])):
        made[name] = {"clean": [0.2, 1.0, 0.2], "bias": shares}
    verdict = ShapeBias().verdict([made, made])
    assert math.isclose(verdict.checks[0].found.value, 0.2)
    assert all(check.status == "holds" for check in verdict.checks if "learn the task" in check.text)


def test_models_that_have_not_learned_the_task_decide_nothing() -> None:
    for case in (ShapeBias().true_case(), ShapeBias().false_case()):
        made = {**case[0], "vit": case[0]["vit"] | {"clean": [0.5]}}
        verdict = ShapeBias().verdict([made, made])
        assert verdict.outcome == "undecided"
        assert "learn the task" in verdict.text


def test_a_tiny_run() -> None:
    torch.manual_seed(0)
    few = Fit(steps=2, batch=8)
    settings = replace(
        ShapeBias.quick, dim=16, depth=1, widths=(4, 4, 4), test=40, vit=few, cnn=few, contrasts=(1.0, 0.3)
    )
    found = ShapeBias().measure(settings, seed=0, device=torch.device("cpu"))
    for name in ("vit", "cnn"):
        for shape, texture in zip(found[name]["shape"], found[name]["texture"], strict=True):
            assert 0 <= shape + texture <= 1
    assert len(ShapeBias().figures([found])) == 3


@pytest.mark.parametrize("settings", [ShapeBias.quick, ShapeBias.full])
def test_both_models_cost_the_same(settings: ShapeBiasSettings) -> None:
    vit = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=settings.side,
                    channels=1, num_classes=CLASSES)  # fmt: skip
    cnn = small_cnn(settings.widths, settings.strides, channels=1, num_classes=CLASSES)
    shape = (1, settings.side, settings.side)
    assert math.isclose(macs(cnn, shape), macs(vit, shape), rel_tol=0.2)
