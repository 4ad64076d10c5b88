"""Where tokens stand in the image: from the grid of one level to that of another, and to pixels."""

import torch
from torch import Tensor

from vitrail.layers.patch import Grid, LinearPatchConfig
from vitrail.models.backbone import BackboneConfig


def step(fine: int, coarse: int) -> float:
    """How many cells of a fine side one of a coarse side stands for; where it is whole, the last may have fewer."""
    whole = -(-fine // coarse)
    return whole if -(-fine // whole) == coarse else fine / coarse


def members(fine: int, coarse: int) -> Tensor:
    """How much of each fine cell lies in each coarse one: coarse fine, each column summing to 1."""
    size = step(fine, coarse)
    edges = torch.arange(fine + 1, dtype=torch.float64)
    starts = torch.arange(coarse, dtype=torch.float64)[:, None] * size
    return (edges[1:].minimum(starts + size) - edges[:-1].maximum(starts)).clamp(min=0)


def spread(weights: Tensor, source: Grid, destination: Grid) -> Tensor:
    """What the patches of one grid hold, on another: B N -> B M, where the sum stays.

    A coarse token shares evenly among the finer cells that it was made of; fine ones add up in the coarse one.
    """
    if source == destination:
        return weights
    maps = weights.unflatten(1, source)  # B h w
    for axis, (old, new) in enumerate(zip(source, destination, strict=True), start=1):
        parts = members(new, old) if new >= old else members(old, new).T  # old new
        parts = parts / parts.sum(dim=1, keepdim=True).clamp(min=torch.finfo(parts.dtype).tiny)
        maps = torch.tensordot(maps, parts.to(maps), dims=([axis], [0])).movedim(-1, axis)
    return maps.flatten(1)


def to_pixels(maps: Tensor, size: tuple[int, int], config: BackboneConfig, *, smooth: bool = True) -> Tensor:
    """Values on a grid, read at the middles of pixels: B h w -> B H W.

    A token's value stands at the middle of its cell, or of its patch where patches overlap; between the middles it is
    interpolated, or with `smooth` off taken from the nearest one.
    """
    grid = (maps.shape[1], maps.shape[2])
    patch = getattr(config, "patch", None)
    exact = isinstance(patch, LinearPatchConfig) and patch.grid(size) == grid
    for axis, (length, count) in enumerate(zip(size, grid, strict=True)):
        wide = step(length, count)
        first = wide / 2  # the middle of the first token, in pixels
        if exact and isinstance(patch, LinearPatchConfig):
            wide, first = (patch.stride or patch.size)[axis], patch.size[axis] / 2 - patch.padding[axis]
        places = (torch.arange(length, dtype=torch.float64) + 0.5 - first) / wide  # H, in tokens
        tokens = torch.arange(count)
        if smooth:
            read = (1 - (places.clamp(0, count - 1)[:, None] - tokens).abs()).clamp(min=0)  # H h, a tent over each
        else:
            # Halfway between two middles a pixel belongs to the second: cells begin with their first pixel.
            read = ((places + 0.5).floor().clamp(0, count - 1)[:, None] == tokens).double()
        maps = torch.tensordot(maps, read.to(maps), dims=([axis + 1], [1])).movedim(-1, axis + 1)
    return maps
