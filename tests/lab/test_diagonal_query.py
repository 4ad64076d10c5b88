import math

import torch

from vitrail.lab.diagonal_query import DiagonalQuery, DiagonalQuerySettings


def test_the_share_of_the_diagonal_in_closed_form() -> None:
    found = DiagonalQuery().measure(DiagonalQuerySettings(pictures=100), seed=0, device=torch.device("cpu"))
    at = found["lengths"].index(1.0)
    assert math.isclose(found["shares"][at], math.exp(0.5) / (math.exp(0.5) + 1), rel_tol=1e-5)
    assert found["with_codes"] > 0.95 > 0.65 > found["without_codes"]
