import math

import torch

from vitrail.lab import low_pass


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
