"""Views made of numbers, for tests of the page: attention that falls off with distance, wider in later heads."""

import torch
from torch import Tensor

from vitrail.explain.attention.cells import LayerView, cell_of_patch
from vitrail.explain.page.gallery import Gallery, View
from vitrail.explain.scoring.map_scores import Score
from vitrail.tasks.answer import Bar

METHODS = ("relevance", "rollout")
PREFIX = ("class token", "register 1")


def attention(heads: int, grid: tuple[int, int], prefix: int, seed: int, side: int = 1) -> Tensor:
    """A R R, each row summing to 1: every head looks a little further, with noise."""
    draw = torch.Generator().manual_seed(seed)
    places = torch.cartesian_prod(torch.arange(-(-grid[0] // side)), torch.arange(-(-grid[1] // side))).float()
    far = torch.cdist(places, places) / torch.linspace(0.5, 6.0, heads)[:, None, None]  # A G G
    logits = torch.randn(heads, prefix + len(places), prefix + len(places), generator=draw)
    logits[:, prefix:, prefix:] -= far
    assert len(places) == int(cell_of_patch(grid, side).max()) + 1
    return logits.softmax(dim=-1)


def view(
    number: int = 0,
    *,
    model: str = "one",
    depth: int = 3,
    heads: int = 3,
    grid: tuple[int, int] = (4, 4),
    prefix: tuple[str, ...] = PREFIX[:1],
    size: int = 32,
    side: int = 1,
    **changes: object,
) -> View:
    """A picture with attention in all layers and two maps."""
    draw = torch.Generator().manual_seed(number)
    layers = [
        LayerView(
            index=layer,
            name=f"blocks.{layer}.attention",
            grid=grid,
            side=side,
            prefix=prefix,
            weights=attention(heads, grid, len(prefix), 100 * number + layer, side).half(),
        )
        for layer in range(depth)
    ]
    whole: dict[str, object] = {
        "model": model,
        "picture": f"picture {number}.jpg",
        "image": torch.randint(0, 256, (3, size, size), generator=draw, dtype=torch.uint8),
        "bars": [Bar("cat", "70.0 %", 0.7, chosen=True), Bar("dog", "30.0 %", 0.3)],
        "target": "cat",
        "score": 0.7,
        "maps": {name: torch.rand(size, size, generator=draw) for name in METHODS},
        "untargeted": ("rollout",),
        "scores": {
            "relevance": Score(0.7, 0.2, shuffled=0.1, pointing=True),
            "rollout": Score(0.6, 0.3, shuffled=-0.05, pointing=False),
            "random": Score(0.5, 0.5, baseline=True, shuffled=1.0, pointing=False),
            "centre": Score(0.55, 0.4, baseline=True, shuffled=1.0, pointing=True),
        },
        "layers": layers,
    }
    return View(**{**whole, **changes})


def gallery(*views: View, **changes: object) -> Gallery:
    """A gallery of views, of two pictures by default."""
    whole: dict[str, object] = {"title": "made", "views": views or (view(0), view(1)), "about": {"one": "a model"}}
    return Gallery(**{**whole, **changes})
