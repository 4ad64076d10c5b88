from dataclasses import replace

import torch

from vitrail.lab.approximation import Approximation, _axis
from vitrail.lab.fitting import Fit


def test_a_tiny_run_and_what_an_untrained_model_misses() -> None:
    torch.manual_seed(0)
    settings = replace(
        Approximation.quick, widths=(8, 16), depths=(1, 2), width=8, depth=1, test=500, how=Fit(steps=1, rate=1e-9)
    )
    found = Approximation().measure(settings, seed=0, device=torch.device("cpu"))
    for axis in ("widths", "depths"):
        for error in found[axis]["rms"]:
            assert abs(error - 1) < 0.02  # a head of zeros gives the mean: the error is the deviation
        assert all(large > 1 for large in found[axis]["largest"])


def test_powers_are_slopes_in_logarithms() -> None:
    runs = [{"rms": 0.5**step, "largest": 1.0, "parameters": 1.0} for step in range(3)]
    assert abs(_axis([1.0, 2.0, 4.0], runs)["powers"]["rms"] + 1) < 1e-9
    assert _axis([1.0, 2.0, 4.0], runs)["powers"]["largest"] == 0
