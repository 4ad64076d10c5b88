import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitrail.lab.attention_entropy import AttentionEntropy, _entropy, _scale_queries, partial_spearman
from vitrail.lab.fitting import Fit
from vitrail.lab.small_models import small_vit


def test_entropy_is_one_for_even_attention_and_falls_with_larger_queries() -> None:
    torch.manual_seed(0)
    images = torch.randn(8, 1, 8, 8)
    found = []
    for factor in (0.0, 1.0, 30.0):
        torch.manual_seed(1)
        model = small_vit(dim=16, depth=1, patch=4, image_size=8, channels=1, num_classes=3)
        _scale_queries(model, factor)
        found.append(_entropy(model, images))
    assert math.isclose(found[0], 1.0, abs_tol=1e-5)
    assert found[0] > found[1] > found[2]


def test_the_partial_correlation_is_that_of_the_formula() -> None:
    stats = pytest.importorskip("scipy.stats")
    x, y, z = np.random.default_rng(0).normal(size=(3, 30))
    x, y = x + z, y - z
    xy, xz, yz = (stats.spearmanr(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    expected = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    assert math.isclose(partial_spearman(list(x), list(y), list(z)), expected, abs_tol=1e-9)


def test_a_tiny_run() -> None:
    torch.manual_seed(0)
    settings = replace(AttentionEntropy.quick, train=40, test=40, runs=5, dim=16, depth=1, how=Fit(steps=4, batch=16))
    found = AttentionEntropy().measure(settings, seed=0, device=torch.device("cpu"))
    assert len(found["runs"]) == 5
    assert all(0 < run["entropy"] <= 1 for run in found["runs"])
    assert -1 <= found["gap_given_train"] <= 1
