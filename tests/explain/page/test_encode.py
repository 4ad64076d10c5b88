"""Attention and maps as text: what is stored, and what is left out."""

import base64
import zlib

import numpy as np
import pytest
import torch
from support.made_views import view
from torch import Tensor

from vitrail.explain.attention.cells import cell_of_patch
from vitrail.explain.page.encode import (
    LEVELS,
    Detail,
    coarse_rows,
    encode_layers,
    encode_map,
    encode_rows,
    is_kept,
    levels_of_detail,
)


def decoded(text: str, rows: int, columns: int) -> Tensor:
    """What the page's script makes of `encode_rows`: M R C."""
    data = zlib.decompress(base64.b64decode(text))
    maps = len(data) // (rows * (2 + columns))
    most = np.frombuffer(data, "<u2", count=maps * rows).reshape(maps, rows, 1) / 65535
    shares = np.frombuffer(data, np.uint8, offset=2 * maps * rows).reshape(maps, rows, columns) / LEVELS
    return torch.from_numpy(most * shares**2).float()


def test_rows_survive_being_packed() -> None:
    weights = torch.rand(3, 10, 17).softmax(dim=-1)
    read = decoded(encode_rows(weights), 10, 17)
    assert read.shape == weights.shape
    assert (read - weights).abs().sum(dim=-1).max() < 0.05  # of a sum of 1
    most = weights.amax(dim=-1)
    assert torch.allclose(read.amax(dim=-1), most, atol=1e-4)
    one = torch.zeros(1, 1, 4)
    one[0, 0, 2] = 1.0
    assert torch.equal(decoded(encode_rows(one), 1, 4), one)


def test_small_weights_are_kept_finer_than_large_ones() -> None:
    row = torch.tensor([[[0.9, 0.004, 0.096]]])
    read = decoded(encode_rows(row), 1, 3)
    assert read[0, 0, 1] > 0  # a uniform step of 1/31 would lose it
    assert (read - row).abs().max() < 1 / LEVELS


@pytest.mark.parametrize("side", [1, 2, 3])
def test_coarse_rows_are_means_over_squares(side: int) -> None:
    weights = torch.rand(2, 1 + 5 * 4, 7).double()
    means = coarse_rows(weights, (5, 4), 1, side).double()
    places = cell_of_patch((5, 4), side)
    assert torch.equal(means[:, 0], weights[:, 0])
    for row in range(means.shape[1] - 1):
        chosen = (places == row).nonzero()[:, 0]
        assert torch.allclose(means[:, 1 + row], weights[:, 1 + chosen].mean(dim=1), atol=1e-6)


def test_levels_of_detail_go_down_and_end() -> None:
    steps = list(levels_of_detail(12))
    assert steps[0] == Detail(1, 1, 1)
    assert steps[-1] == Detail(12, 0, 1)
    assert len(set(steps)) == len(steps)
    assert [index for index in range(12) if is_kept(index, 12, 3)] == [2, 5, 8, 11]
    assert list(levels_of_detail(1)) == [*(Detail(1, 1, side) for side in (1, 2, 3, 4)), Detail(1, 0, 1)]


def test_what_does_not_fit_is_left_out_with_a_note() -> None:
    views = [view(number, depth=4, heads=4, grid=(6, 6)).layers for number in range(2)]
    whole, text = encode_layers(views, 10**9)
    assert text == ""
    assert all("heads" in layer and "mean" not in layer for layers in whole for layer in layers)
    size = sum(len(layer["heads"]) for layers in whole for layer in layers)
    sizes = []
    for share in (0.6, 0.3, 0.12, 0.07):
        written, text = encode_layers(views, int(share * size))
        sizes.append(
            sum(len(layer.get(key, "")) for layers in written for layer in layers for key in ("mean", "heads"))
        )
        assert sizes[-1] <= share * size
        assert "All heads of all layers would need about" in text
        assert written[0][-1]["index"] == 3  # the last layer is always there
    assert "one row for" in encode_layers(views, int(0.6 * size))[1]
    assert "Of 4 layers, 3 are stored" in text
    assert sizes == sorted(sizes, reverse=True)
    assert len(encode_layers(views, 1)[0]) == 2  # not even the least fits: it is written all the same


def test_maps_keep_their_range_and_shrink() -> None:
    found = encode_map(torch.linspace(-1, 3, 300 * 150).view(300, 150))
    assert found["size"] == [96, 48]
    assert found["low"] == pytest.approx(-1, abs=0.03)
    assert found["high"] == pytest.approx(3, abs=0.03)
    assert encode_map(torch.full((5, 7), 0.3))["size"] == [5, 7]
