"""Numbers that a person chose: counted from 0, or one sentence."""

import numpy as np
import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.explain.indices import check_indices, resolve_indices


def test_all_by_default_and_negative_ones_from_the_end() -> None:
    assert resolve_indices(None, 3, "layer", "layers") == [0, 1, 2]
    assert resolve_indices([0, -1], 3, "layer", "layers") == [0, 2]
    assert resolve_indices(range(2), 3, "layer", "layers") == [0, 1]
    assert resolve_indices(torch.tensor([2, -3]), 3, "row", "tokens") == [2, 0]
    assert check_indices(np.array([1, 2]), "row") == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "word"),
    [
        (3, "list"),
        ("3", "list"),
        (torch.tensor(3), "list"),
        ([], "empty"),
        ([1.5], "1.5"),
        (torch.tensor([True, False]), "True"),  # a mask is not a list of indices
        (torch.tensor([[1, 2]]), "contains"),
        ([0, 5], "row 5"),
        ([-6], "row -6"),
    ],
)
def test_indices_that_are_not_numbers_are_refused(chosen: object, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        resolve_indices(chosen, 5, "row", "tokens")  # type: ignore[arg-type]
