import math

import numpy as np
import torch

from vitrail.lab.kernel_regression import _attention, nadaraya_watson, properties


def test_the_estimate_is_a_weighted_mean() -> None:
    kernel, values = np.array([[1.0, 3.0]]), np.array([[2.0], [6.0]])
    assert nadaraya_watson(kernel, values).tolist() == [[(2 + 18) / 4]]


def test_one_query_by_hand() -> None:
    q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[2.0, 0.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[1.0], [0.0]]]])
    weight = math.exp(2 / math.sqrt(2)) / (math.exp(2 / math.sqrt(2)) + 1)
    assert math.isclose(float(_attention(q, k, v, 2**-0.5)), weight, rel_tol=1e-6)


def test_a_rotation_of_the_queries_makes_the_kernel_antisymmetric() -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(1, 1, 12, 2), torch.randn(1, 1, 12, 3)
    turned = torch.stack([-keys[..., 1], keys[..., 0]], dim=-1)
    found = properties(turned, keys, values, attend=_attention)
    assert math.isclose(found["asymmetry"], 1.0, rel_tol=1e-6)
    assert found["identity"] < 1e-5
    equal = properties(keys, keys, values, attend=_attention)
    assert equal["asymmetry"] < 1e-12
    assert equal["negative"] < 1e-9
    assert equal["gaussian"] > 0.01  # the keys differ in length
