"""Captured attention against `output_attentions` of transformers, in its eager implementation, on copied weights."""

from pathlib import Path

import pytest
import torch
from parity.cases.hf import build, save
from parity.compare import randomise
from support.peers import transformers
from torch import Tensor

import vitrail
from vitrail.explain import capture


def test_vit(tmp_path: Path) -> None:
    theirs = build("ViTForImageClassification", {}, attention="eager")
    save(theirs, tmp_path)
    model, images = vitrail.load(tmp_path), torch.randn(2, 3, 32, 32)
    with torch.no_grad(), capture(model) as seen:
        model(images)
        expected = theirs(images, output_attentions=True).attentions
    assert len(expected) == len(seen.attention) == 2
    for index, attention in enumerate(expected):
        torch.testing.assert_close(seen.attention[index], attention, atol=1e-5, rtol=0)


def spread(windows: Tensor, grid: tuple[int, int], size: int, shift: int) -> Tensor:
    """Attention within windows, BW A w w, in the true places of a grid, pair by pair: B A N N."""
    (h, w), columns = grid, grid[1] // size
    found = windows.unflatten(0, (-1, h // size * columns))  # B W A w w
    whole = torch.zeros(found.shape[0], found.shape[2], h * w, h * w)
    places = {}  # of each slot of each window in the map before it was rolled
    for y in range(h):
        for x in range(w):
            slot = y // size * columns + x // size, y % size * size + x % size
            places[slot] = (y + shift) % h * w + (x + shift) % w
    for (window, one), query in places.items():
        for other in range(size * size):
            whole[:, :, query, places[window, other]] += found[:, window, :, one, other]
    return whole


@pytest.mark.parametrize("architecture", ["SwinForImageClassification", "Swinv2ForImageClassification"])
def test_swin(architecture: str, tmp_path: Path) -> None:
    options = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2, 1, 1]}
    cls = getattr(transformers, architecture)
    config = cls.config_class(**options, num_heads=[2, 4, 4, 4], window_size=2)
    config._attn_implementation = "eager"
    theirs = randomise(cls(config))
    save(theirs, tmp_path)
    model, images = vitrail.load(tmp_path), torch.randn(2, 3, 64, 64)
    with torch.no_grad(), capture(model) as seen:
        model(images)
        expected = dict(enumerate(_attentions(theirs, images)))
    assert len(expected) == len(seen.attention) == 6
    assert [seen.grid[index] for index in expected] == [(16, 16), (16, 16), (8, 8), (8, 8), (4, 4), (2, 2)]
    for index, attention in expected.items():
        shift = 1 if index in (1, 3) else 0  # every second block
        whole = spread(attention, seen.grid[index], 2, shift)
        torch.testing.assert_close(seen.attention[index], whole, atol=1e-5, rtol=0)


def _attentions(model: torch.nn.Module, images: Tensor) -> list[Tensor]:
    """Those of every block: `output_attentions` gives the last block's of each stage alone."""
    found = []
    blocks = [part for part in model.modules() if type(part).__name__ in ("SwinAttention", "Swinv2Attention")]
    hooks = [block.register_forward_hook(lambda *parts: found.append(parts[-1][1])) for block in blocks]
    given = model(images, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    assert all(any(torch.equal(one, other) for other in found) for one in given)
    return found
