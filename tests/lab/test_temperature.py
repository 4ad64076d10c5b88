import math

import torch

from vitrail.lab.temperature import Temperature, TemperatureSettings


def test_random_tokens_reach_both_limits_and_equal_keys_share() -> None:
    found = Temperature().measure(
        TemperatureSettings(tokens=8, dim=16, num_heads=2), seed=0, device=torch.device("cpu")
    )
    assert found["single"]["largest"][0] > 0.99
    assert math.isclose(found["single"]["entropy"][-1], 1.0, abs_tol=1e-6)
    assert math.isclose(found["doubled"]["largest"][0], 0.5, abs_tol=0.01)
