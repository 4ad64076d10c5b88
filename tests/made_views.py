"""Views made of numbers, for tests of the page: attention that falls off with distance, wider in later heads."""

import torch
from torch import Tensor

from vitrail.explain.page import Gallery, Score, View
from vitrail.explain.page_encode import LayerView, group

METHODS = ("relevance", "rollout")
PREFIX = ("class token", "register 1")


def attention(heads: int, grid: tuple[int, int], prefix: int, seed: int, step: int = 1) -> Tensor:
    """A R R, each row summing to 1: every head looks a little further, with noise."""
    draw = torch.Generator().manual_seed(seed)
    places = torch.cartesian_prod(torch.arange(-(-grid[0] // step)), torch.arange(-(-grid[1] // step))).float()
    far = torch.cdist(places, places) / torch.linspace(0.5, 6.0, heads)[:, None, None]  # A G G
    logits = torch.randn(heads, prefix + len(places), prefix + len(places), generator=draw)
    logits[:, prefix:, prefix:] -= far
    assert len(places) == int(group(grid, step).max()) + 1
    return logits.softmax(dim=-1)


def view(
    number: int = 0,
    *,
    model: str = "one",
    depth: int = 3,
    heads: int = 3,
    grid: tuple[int, int] = (4, 4),
    prefix: tuple[str, ...] = PREFIX[:1],
    side: int = 32,
    step: int = 1,
    **changes: object,
) -> View:
    """A picture with attention in all layers and two maps."""
    draw = torch.Generator().manual_seed(number)
    layers = [
        LayerView(
            number=layer,
            name=f"blocks.{layer}.attention",
            grid=grid,
            step=step,
            prefix=prefix,
            weights=attention(heads, grid, len(prefix), 100 * number + layer, step).half(),
        )
        for layer in range(depth)
    ]
    whole: dict[str, object] = {
        "model": model,
        "picture": f"picture {number}.jpg",
        "image": torch.randint(0, 256, (3, side, side), generator=draw, dtype=torch.uint8),
        "answers": [("cat", 0.7), ("dog", 0.3)],
        "target": "cat",
        "maps": {name: torch.rand(side, side, generator=draw) for name in METHODS},
        "classless": ("rollout",),
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
