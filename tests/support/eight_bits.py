"""What tests of products in 8 bits need: those with a scale for each row are newer on a CPU than on a GPU."""

import pytest
import torch

from vitrail.layers.fp8 import Rows


def _computed() -> bool:
    rows = Rows.of(torch.ones(16, 16))
    try:
        rows.times(rows, torch.bfloat16)
    except RuntimeError:
        return False
    return True


needs_products = pytest.mark.skipif(not _computed(), reason="this torch has no products of rows in 8 bits on a CPU")
