"""Attention in cells, from real models."""

import torch
from support.registered import pictures, tiny

from vitrail.explain.attention.capture import capture
from vitrail.explain.attention.layer_views import MAX_CELLS, layer_views


def test_attention_is_that_of_the_layers() -> None:
    model = tiny(image_size=(24, 16), registers=1)
    images = pictures(model, batch=1)
    layers, missing = layer_views(model, images)
    assert missing == ""
    with capture(model) as captured, torch.no_grad():
        model(images)
    for layer in layers:
        assert layer.side == 1
        assert layer.grid == captured.grid[layer.index] == (3, 2)
        assert layer.prefix == ("class token", "register 1")
        assert torch.allclose(layer.weights.float(), captured.attention[layer.index][0], atol=1e-3)
    assert [layer.index for layer in layer_views(model, images, [-1])[0]] == [1]


def test_fine_grids_are_shown_in_cells() -> None:
    model = tiny(image_size=(8 * 18, 8 * 20), depth=1)
    images = pictures(model, batch=1)
    (layer,), _ = layer_views(model, images)
    assert (layer.grid, layer.side, layer.cells) == ((18, 20), 2, (9, 10))
    assert max(layer.cells) <= MAX_CELLS
    assert torch.allclose(layer.weights.float().sum(dim=-1), torch.ones(2, 91), atol=2e-3)
    with capture(model) as captured, torch.no_grad():
        model(images)
    whole = captured.attention[0][0, :, 1:, 1:].view(2, 9, 2, 10, 2, 9, 2, 10, 2)  # A, queries, keys
    cells = whole.mean(dim=(2, 4)).sum(dim=(4, 6)).reshape(2, 90, 90)
    assert torch.allclose(layer.weights[:, 1:, 1:].float(), cells, atol=1e-3)
