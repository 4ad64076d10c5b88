import math
from dataclasses import replace

import pytest
import torch

from vitrail.lab import low_pass
from vitrail.lab.fitting import Fit
from vitrail.lab.low_pass import LowPass
from vitrail.lab.small_training import Labelled


def test_the_gain_of_the_laplacian_is_that_of_the_source() -> None:
    found = low_pass._laplacian(alpha=0.1)["random"]["gain"]
    side = torch.fft.fftfreq(8) * 2 * math.pi
    one = 2 * side.cos() - 2
    expected = (1 + 0.1 * (one[:, None] + one[None])).abs()
    highest = torch.maximum(side.abs()[:, None], side.abs()[None]) > 0.9 * math.pi
    assert math.isclose(found[-1], float(expected[highest].mean()), rel_tol=1e-4)


def test_a_mean_over_all_tokens_passes_nothing_but_the_constant() -> None:
    assert max(low_pass._gain(torch.full((1, 16, 16), 1 / 16))) < 1e-6
    assert all(math.isclose(gain, 1.0, rel_tol=1e-5) for gain in low_pass._gain(torch.eye(16)[None]))


def test_the_full_form_also_trains_a_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images, classes = torch.rand(8, 3, 32, 32), torch.arange(8)
    monkeypatch.setattr(low_pass, "open_pictures", lambda *_: (Labelled(images, classes),) * 2)
    settings = replace(LowPass.quick, depth=2, images=2, data="cifar10", own_depth=2, how=Fit(steps=2, batch=4))
    found = LowPass().measure(settings, seed=0, device=torch.device("cpu"))
    for name, blocks in (("random", 2), ("own", 2), ("trained", len(found["trained"]["mlp"]))):
        assert len(found[name]["gains"]) == blocks == len(found[name]["stream"]) - 1
        ends = [(min(one), max(one)) for one in zip(*found[name]["gains"], strict=True)]
        assert all(low <= gain <= high for gain, (low, high) in zip(found[name]["gain"], ends, strict=True))
    assert len(LowPass().verdict([found]).checks) == 9
    assert len(LowPass().figures([found])[0].sections) == 7
