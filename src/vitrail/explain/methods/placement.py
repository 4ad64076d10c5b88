"""Positions of tokens in the image: from the grid of one level to that of another, and to pixels.

A token is at the centre of its receptive field. Patches without overlap divide the image into cells; but three strided
3 x 3 convolutions with a padding of 1 make tokens of the pixels around 0, 8, 16, ..., not around the centres of cells
of 8. So the strides of a model are recorded while it runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.layers.attention import Attention
from vitrail.layers.patch import Grid

STRIDED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


class Stride(NamedTuple):
    """From a fine side to a coarse one: the centre of coarse cell i is at `first` + i `stride`, in fine cells."""

    stride: float
    first: float

    def then(self, further: "Stride") -> "Stride":
        """Both one after the other."""
        return Stride(self.stride * further.stride, self.first + self.stride * further.first)


Pair = tuple[Stride, Stride]  # of height and width


class Strides:
    """Positions of the cells of each grid of a model in each finer grid, by the strided layers between them.

    Where no layer is recorded, as when tokens are merged by slicing, the finer grid is divided into cells.
    """

    def __init__(self) -> None:
        self._recorded: dict[tuple[Grid, Grid], tuple[int, Pair]] = {}

    def record(self, layer: nn.Module, fine: Grid) -> None:
        """Adds a strided layer that runs on a grid; of parallel layers, the one with the largest kernel counts."""
        kernel, stride, padding, dilation = (
            _pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")
        )
        reach = [dilation[axis] * (kernel[axis] - 1) for axis in (0, 1)]
        y, x = ((fine[axis] + 2 * padding[axis] - reach[axis] - 1) // stride[axis] + 1 for axis in (0, 1))
        strides = [Stride(stride[axis], reach[axis] / 2 - padding[axis]) for axis in (0, 1)]
        if (fine, (y, x)) not in self._recorded or self._recorded[fine, (y, x)][0] < max(kernel):
            self._recorded[fine, (y, x)] = (max(kernel), (strides[0], strides[1]))

    def between(self, fine: Grid, coarse: Grid) -> Pair:
        """From a grid to a coarser one, step by step."""
        if fine == coarse:
            return Stride(1, 0), Stride(1, 0)
        after = [end for start, end in self._recorded if start == fine != end and _within(coarse, end)]
        if after:
            following = max(after)
            return _combine(self._recorded[fine, following][1], self.between(following, coarse))
        between = [
            start for start, _ in self._recorded if start != fine and _within(coarse, start) and _within(start, fine)
        ]
        following = max(between, default=coarse)
        if following == coarse:
            return cells(fine[0], coarse[0]), cells(fine[1], coarse[1])
        return _combine(self.between(fine, following), self.between(following, coarse))


@contextmanager
def record_strides(model: nn.Module) -> Iterator[Strides]:
    """Records the strides of a model that runs inside the block, without those inside its attention layers."""
    strides = Strides()

    def record(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        strides.record(layer, (inputs[0].shape[2], inputs[0].shape[3]))

    inside = {part for layer in model.modules() if isinstance(layer, Attention) for part in layer.modules()}
    strided = [part for part in model.modules() if isinstance(part, STRIDED) and max(_pair(part.stride)) > 1]
    hooks = [part.register_forward_pre_hook(record) for part in strided if part not in inside]
    try:
        yield strides
    finally:
        for hook in hooks:
            hook.remove()


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _within(coarse: Grid, fine: Grid) -> bool:
    return coarse[0] <= fine[0] and coarse[1] <= fine[1]


def _combine(first: Pair, further: Pair) -> Pair:
    return first[0].then(further[0]), first[1].then(further[1])


def cells(fine: int, coarse: int) -> Stride:
    """A side divided into cells."""
    size = step(fine, coarse)
    return Stride(size, (size - 1) / 2)


def step(fine: int, coarse: int) -> float:
    """Fine cells per coarse cell; an integer if possible, where the last cell may have fewer."""
    whole = -(-fine // coarse)
    return whole if -(-fine // whole) == coarse else fine / coarse


def overlaps(fine: int, coarse: int, stride: Stride) -> Tensor:
    """The share of each fine cell that is in each coarse cell: coarse fine, each column sums to 1."""
    edges = torch.arange(fine + 1, dtype=torch.float64)
    starts = stride.first + 0.5 + (torch.arange(coarse, dtype=torch.float64) - 0.5) * stride.stride
    ends = starts + stride.stride
    starts[0], ends[-1] = min(starts[0].item(), 0.0), max(ends[-1].item(), float(fine))  # with the edges
    return (edges[1:].minimum(ends[:, None]) - edges[:-1].maximum(starts[:, None])).clamp(min=0)


def spread(weights: Tensor, source: Grid, destination: Grid, strides: Strides) -> Tensor:
    """Moves values from the patches of one grid to another and keeps their sum: B N -> B M.

    A coarse token divides its value among the finer cells around its centre; fine ones add up.
    """
    if source == destination:
        return weights
    maps = weights.unflatten(1, source)  # B h w
    finer = _within(source, destination)
    pair = strides.between(destination, source) if finer else strides.between(source, destination)
    for axis, (old, new) in enumerate(zip(source, destination, strict=True)):
        parts = overlaps(new, old, pair[axis]) if finer else overlaps(old, new, pair[axis]).T  # old new
        parts = parts / parts.sum(dim=1, keepdim=True).clamp(min=torch.finfo(parts.dtype).tiny)
        maps = torch.tensordot(maps, parts.to(maps), dims=([axis + 1], [0])).movedim(-1, axis + 1)
    return maps.flatten(1)


def to_pixels(maps: Tensor, size: tuple[int, int], strides: Strides) -> Tensor:
    """Values on a grid, read at the centres of pixels: B h w -> B H W.

    A token's value is at the centre of its receptive field, and interpolated between centres.
    """
    pair = strides.between(size, (maps.shape[1], maps.shape[2]))
    for axis, (length, stride) in enumerate(zip(size, pair, strict=True), start=1):
        count = maps.shape[axis]
        at = ((torch.arange(length, dtype=torch.float64) - stride.first) / stride.stride).clamp(
            0, count - 1
        )  # H, in tokens
        weights = (1 - (at[:, None] - torch.arange(count)).abs()).clamp(min=0)  # H h, linear interpolation
        maps = torch.tensordot(maps, weights.to(maps), dims=([axis], [1])).movedim(-1, axis)
    return maps
