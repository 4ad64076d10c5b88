"""Where tokens stand in the image: from the grid of one level to that of another, and to pixels.

A token stands at the middle of what it was made of. Patches without overlap divide the image into cells; but three
strided convolutions of 3 x 3 with a padding of 1 make tokens of the pixels around 0, 8, 16, ..., not around the middles
of cells of 8. So the strides of a model are noted as it runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.patch import Grid

STRIDED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


class Way(NamedTuple):
    """From a fine side to a coarse one: the coarse cell i stands at `first` + i `stride`, in fine cells."""

    stride: float
    first: float

    def then(self, further: "Way") -> "Way":
        """From the fine side to one that is coarser than the coarse one."""
        return Way(self.stride * further.stride, self.first + self.stride * further.first)


Ways = tuple[Way, Way]  # of height and width


class Places:
    """Where the cells of each grid of a model stand in each finer one, by the strided layers between them.

    What no layer tells, as where tokens are merged by slicing, divides the finer grid into cells.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Grid, Grid], tuple[int, Ways]] = {}

    def note(self, layer: nn.Module, fine: Grid) -> None:
        """Adds a strided layer that runs on a grid; of several side by side, the one of the largest kernel counts."""
        kernel, stride, padding, dilation = (
            _pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")
        )
        reach = [dilation[axis] * (kernel[axis] - 1) for axis in (0, 1)]
        y, x = ((fine[axis] + 2 * padding[axis] - reach[axis] - 1) // stride[axis] + 1 for axis in (0, 1))
        ways = [Way(stride[axis], reach[axis] / 2 - padding[axis]) for axis in (0, 1)]
        if (fine, (y, x)) not in self._known or self._known[fine, (y, x)][0] < max(kernel):
            self._known[fine, (y, x)] = (max(kernel), (ways[0], ways[1]))

    def ways(self, fine: Grid, coarse: Grid) -> Ways:
        """From a grid to a coarser one, step by step."""
        if fine == coarse:
            return Way(1, 0), Way(1, 0)
        after = [end for start, end in self._known if start == fine != end and _within(coarse, end)]
        if after:
            following = max(after)
            return _joined(self._known[fine, following][1], self.ways(following, coarse))
        between = [
            start for start, _ in self._known if start != fine and _within(coarse, start) and _within(start, fine)
        ]
        following = max(between, default=coarse)
        if following == coarse:
            return cells(fine[0], coarse[0]), cells(fine[1], coarse[1])
        return _joined(self.ways(fine, following), self.ways(following, coarse))


@contextmanager
def placing(model: nn.Module) -> Iterator[Places]:
    """Notes the strides of a model as it runs inside the block, but for those inside of its attention."""
    places = Places()

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        places.note(layer, (inputs[0].shape[2], inputs[0].shape[3]))

    inside = {part for layer in model.modules() if isinstance(layer, Attention) for part in layer.modules()}
    strided = [part for part in model.modules() if isinstance(part, STRIDED) and max(_pair(part.stride)) > 1]
    hooks = [part.register_forward_pre_hook(note) for part in strided if part not in inside]
    try:
        yield places
    finally:
        for hook in hooks:
            hook.remove()


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _within(coarse: Grid, fine: Grid) -> bool:
    return coarse[0] <= fine[0] and coarse[1] <= fine[1]


def _joined(first: Ways, further: Ways) -> Ways:
    return first[0].then(further[0]), first[1].then(further[1])


def cells(fine: int, coarse: int) -> Way:
    """A side divided into cells."""
    size = step(fine, coarse)
    return Way(size, (size - 1) / 2)


def step(fine: int, coarse: int) -> float:
    """How many cells of a fine side one of a coarse side stands for; where it is whole, the last may have fewer."""
    whole = -(-fine // coarse)
    return whole if -(-fine // whole) == coarse else fine / coarse


def members(fine: int, coarse: int, way: Way) -> Tensor:
    """How much of each fine cell lies in each coarse one: coarse fine, each column summing to 1."""
    edges = torch.arange(fine + 1, dtype=torch.float64)
    starts = way.first + 0.5 + (torch.arange(coarse, dtype=torch.float64) - 0.5) * way.stride
    ends = starts + way.stride
    starts[0], ends[-1] = min(starts[0].item(), 0.0), max(ends[-1].item(), float(fine))  # edges belong to somebody
    return (edges[1:].minimum(ends[:, None]) - edges[:-1].maximum(starts[:, None])).clamp(min=0)


def spread(weights: Tensor, source: Grid, destination: Grid, places: Places) -> Tensor:
    """What the patches of one grid hold, on another: B N -> B M, where the sum stays.

    A coarse token shares among the finer cells around its middle, those that it was made of; fine ones add up in it.
    """
    if source == destination:
        return weights
    maps = weights.unflatten(1, source)  # B h w
    finer = _within(source, destination)
    ways = places.ways(destination, source) if finer else places.ways(source, destination)
    for axis, (old, new) in enumerate(zip(source, destination, strict=True)):
        parts = members(new, old, ways[axis]) if finer else members(old, new, ways[axis]).T  # old new
        parts = parts / parts.sum(dim=1, keepdim=True).clamp(min=torch.finfo(parts.dtype).tiny)
        maps = torch.tensordot(maps, parts.to(maps), dims=([axis + 1], [0])).movedim(-1, axis + 1)
    return maps.flatten(1)


def to_pixels(maps: Tensor, size: tuple[int, int], places: Places) -> Tensor:
    """Values on a grid, read at the middles of pixels: B h w -> B H W.

    A token's value stands at the middle of what it was made of; between the middles it is interpolated.
    """
    ways = places.ways(size, (maps.shape[1], maps.shape[2]))
    for axis, (length, way) in enumerate(zip(size, ways, strict=True), start=1):
        count = maps.shape[axis]
        at = ((torch.arange(length, dtype=torch.float64) - way.first) / way.stride).clamp(0, count - 1)  # H, in tokens
        read = (1 - (at[:, None] - torch.arange(count)).abs()).clamp(min=0)  # H h, a tent over each
        maps = torch.tensordot(maps, read.to(maps), dims=([axis], [1])).movedim(-1, axis)
    return maps
