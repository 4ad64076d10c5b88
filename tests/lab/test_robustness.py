import math
from dataclasses import replace

import torch

from vitrail.lab.corruptions import CORRUPTIONS
from vitrail.lab.fitting import Fit
from vitrail.lab.robustness import Robustness, _share_gain


def test_a_tiny_run_has_every_case_and_the_verdict_reads_it() -> None:
    torch.manual_seed(0)
    few = Fit(steps=3, batch=16)
    settings = replace(
        Robustness.quick, train=64, test=32, tried=8, dim=16, depth=1, widths=(8,), strides=(4, 1), vit=few, cnn=few
    )
    found = Robustness().measure(settings, seed=0, device=torch.device("cpu"))
    for model in ("vit", "cnn"):
        assert found[model]["corruptions"].keys() == CORRUPTIONS.keys()
        mean = sum(found[model]["corruptions"].values()) / 15
        assert math.isclose(mean, found[model]["corruption"], abs_tol=1e-9)
        assert math.isclose(mean, sum(found[model]["strengths"]) / 5, abs_tol=1e-9)
    assert len(Robustness().verdict([found]).checks) == 8


def test_the_share_that_is_kept_is_that_above_chance() -> None:
    results = [{"chance": 0.1, "vit": {"clean": 0.9, "sketch": 0.5}, "cnn": {"clean": 0.5, "sketch": 0.4}}]
    assert math.isclose(_share_gain(results, "sketch")[0], 0.5 - 0.75)
    results = [{"chance": 0.1, "vit": {"clean": 0.9, "pgd": 0.0}, "cnn": {"clean": 0.5, "pgd": 0.1}}]
    assert _share_gain(results, "pgd") == [0.0]  # an attack that leaves less than a guess leaves nothing
    results = [{"chance": 0.1, "vit": {"clean": 0.1, "pgd": 0.0}, "cnn": {"clean": 0.5, "pgd": 0.1}}]
    assert math.isnan(_share_gain(results, "pgd")[0])  # nothing was learned, so nothing can be kept
