"""Numbers that a person chose: counted from 0, or one sentence."""

import numpy as np
import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.explain.chosen import listed, numbers


def test_all_by_default_and_negative_ones_from_the_end() -> None:
    assert numbers(None, 3, "layer", "layers") == [0, 1, 2]
    assert numbers([0, -1], 3, "layer", "layers") == [0, 2]
    assert numbers(range(2), 3, "layer", "layers") == [0, 1]
    assert numbers(torch.tensor([2, -3]), 3, "row", "tokens") == [2, 0]
    assert listed(np.array([1, 2]), "row") == [1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (3, "rows is 3; it must be a list of numbers"),
        ("3", "rows is '3'; it must be a list"),
        (torch.tensor(3), "rows is 3; it must be a list"),
        ([], "rows is empty; name at least one row"),
        ([1.5], "rows holds 1.5; it must be a list of whole numbers"),
        (torch.tensor([True, False]), "rows holds True; it must be"),  # a mask is no list of places
        (torch.tensor([[1, 2]]), r"rows holds \[1, 2\]; it must be"),
        ([0, 5], "row 5 does not exist; there are 5 tokens, 0 to 4"),
        ([-6], "row -6 does not exist"),
    ],
)
def test_what_is_no_list_of_numbers(chosen: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        numbers(chosen, 5, "row", "tokens")  # type: ignore[arg-type]
