"""Attention and maps as text inside a page: in 32 steps, deflated, and as much of it as fits.

A row is kept as its largest weight (16 bits) and the square root of every weight's share of it (5 bits), which is finer
where weights are small. Where all heads of all layers do not fit, `ladder` says what is given up, step by step.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.layers.patch import Grid

LEVELS = 31
MAP_SIDE = 96  # pixels of the longer side of what is kept of a saliency map
_QUERIES = (1, 2, 3, 4)  # sides of the groups of cells whose rows are kept as one mean, head by head


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """What one layer attends to in one picture: `weights` A R R over P prefix tokens and cells, rows first.

    A cell is `step` x `step` patches of the grid (fewer at the far edges): the mean over its queries, the sum over its
    keys, so that each row still sums to 1.
    """

    number: int  # of the model's attention layers
    name: str
    grid: Grid  # of patches
    step: int
    prefix: tuple[str, ...]
    weights: Tensor

    @property
    def cells(self) -> Grid:
        """Rows and columns of cells."""
        return -(-self.grid[0] // self.step), -(-self.grid[1] // self.step)


class Detail(NamedTuple):
    """How much of the attention is kept: every how many layers at all, with heads, and queries a side in one row."""

    layers: int
    heads: int  # every so many layers have their heads one by one; 0: none
    queries: int


def ladder(depth: int) -> Iterator[Detail]:
    """From everything to the least, ending with the mean over heads of the last layer alone."""
    yield from (Detail(1, 1, queries) for queries in _QUERIES)
    every = [number for number in (2, 3, 4, 6, 8, 12, 24) if number < depth]
    yield from (Detail(1, number, _QUERIES[-1]) for number in every)
    yield Detail(1, 0, 1)
    yield from (Detail(number, 0, 1) for number in [*every, depth] if number > 1)


def is_kept(index: int, depth: int, every: int) -> bool:
    """Whether a layer is one of every so many, counted back from the last."""
    return every > 0 and (depth - 1 - index) % every == 0


def coarse(weights: Tensor, cells: Grid, num_prefix: int, queries: int) -> Tensor:
    """A P+G C -> A P+g C: the rows of `queries` x `queries` cells as their mean."""
    if queries == 1:
        return weights
    heads, _, columns = weights.shape
    places = group(cells, queries).to(weights.device)  # G
    count = int(places.max()) + 1
    means = weights.new_zeros(heads, count, columns, dtype=torch.float32)
    means.index_add_(1, places, weights[:, num_prefix:].float())
    sizes = torch.bincount(places, minlength=count)[None, :, None]  # 1 g 1
    return torch.cat([weights[:, :num_prefix].float(), means / sizes], dim=1)


def group(grid: Grid, step: int) -> Tensor:
    """The number of the group of `step` x `step` places that each place of a grid h w falls into, h*w, rows first."""
    rows, columns = torch.arange(grid[0]) // step, torch.arange(grid[1]) // step
    return (rows[:, None] * -(-grid[1] // step) + columns).flatten()


def packed_rows(weights: Tensor) -> str:
    """M R C weights from 0 to 1 -> text: M R largest ones as uint16, then M R C shares as uint8; deflated, base64."""
    weights = weights.detach().float().cpu().clamp(0, 1)
    most = (weights.amax(dim=-1) * 65535).round()  # M R
    scale = (most / 65535).clamp_min(1e-9)[..., None]
    shares = ((weights / scale).clamp(0, 1).sqrt() * LEVELS).round()
    return _text(most.numpy().astype("<u2").tobytes() + shares.to(torch.uint8).numpy().tobytes())


def unpacked_rows(text: str, rows: int, columns: int) -> Tensor:
    """What a page makes of `packed_rows`: M R C."""
    data = zlib.decompress(base64.b64decode(text))
    maps = len(data) // (rows * (2 + columns))
    most = np.frombuffer(data, "<u2", count=maps * rows).reshape(maps, rows, 1) / 65535
    shares = np.frombuffer(data, np.uint8, offset=2 * maps * rows).reshape(maps, rows, columns) / LEVELS
    return torch.from_numpy(most * shares**2).float()


def packed_map(values: Tensor) -> dict[str, Any]:
    """A saliency map H W as text: its range in 256 steps, at most 96 pixels a side."""
    values = values.detach().float().cpu()
    scale = min(1.0, MAP_SIDE / max(values.shape))
    size = (max(1, round(values.shape[0] * scale)), max(1, round(values.shape[1] * scale)))
    if scale < 1:
        values = torch.nn.functional.interpolate(values[None, None], size=size, mode="area")[0, 0]
    low, high = float(values.min()), float(values.max())
    bytes_ = ((values - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8).numpy().tobytes()
    return {"size": list(size), "low": low, "high": high, "data": _text(bytes_)}


def encoded(views: Sequence[Sequence[LayerView]], budget: int) -> tuple[list[list[dict[str, Any]]], str]:
    """The attention of all views in at most `budget` characters where any way fits, and a sentence on what is left out.

    Each layer has its name, grid and cells; `mean` holds the mean over heads, `heads` the heads one by one.
    """
    depth = max((len(layers) for layers in views), default=0)
    if not depth:
        return [[] for _ in views], ""
    whole, packs = 0.0, [[_Pack(layer) for layer in layers] for layers in views]
    for detail in ladder(depth):
        written, size = list[list[dict[str, Any]]](), 0
        for layers in packs:
            written.append(_written(layers, detail))
            size += sum(len(one.get(key, "")) for one in written[-1] for key in ("mean", "heads"))
            if size > budget:
                break
        whole = whole or size * len(views) / len(written)  # pictures are much the same to a compressor
        if size <= budget:
            break
    written += [_written(layers, detail) for layers in packs[len(written) :]]  # where not even the least fits
    longest = max(views, key=len)
    return written, _told(detail, whole, [layer.number for layer in longest])


class _Pack:
    """A layer, and the text of what was asked of it already."""

    def __init__(self, layer: LayerView) -> None:
        self.layer = layer
        self._texts: dict[int, str] = {}

    def heads(self, queries: int) -> str:
        """The heads one by one, `queries` x `queries` cells in one row."""
        layer = self.layer
        if queries not in self._texts:
            rows = coarse(layer.weights, layer.cells, len(layer.prefix), queries)
            self._texts[queries] = packed_rows(rows)
        return self._texts[queries]

    def mean(self) -> str:
        """The mean over heads, every row."""
        if 0 not in self._texts:
            self._texts[0] = packed_rows(self.layer.weights.float().mean(dim=0, keepdim=True))
        return self._texts[0]


def _written(layers: Sequence[_Pack], detail: Detail) -> list[dict[str, Any]]:
    found = []
    for index, pack in enumerate(layers):
        if not is_kept(index, len(layers), detail.layers):
            continue
        layer, heads = pack.layer, len(pack.layer.weights)
        one: dict[str, Any] = {
            "number": layer.number,
            "name": layer.name,
            "grid": list(layer.grid),
            "step": layer.step,
            "cells": list(layer.cells),
            "prefix": list(layer.prefix),
            "count": heads,
        }
        if is_kept(index, len(layers), detail.heads) and heads > 1:
            one |= {"queries": detail.queries, "heads": pack.heads(detail.queries)}
        if "heads" not in one or detail.queries > 1:  # the page takes the mean of whole heads itself
            one["mean"] = pack.mean()
        found.append(one)
    return found


def _told(detail: Detail, whole: float, numbers: Sequence[int]) -> str:
    if detail == Detail(1, 1, 1):
        return ""
    depth = len(numbers)
    kept = [number for index, number in enumerate(numbers) if is_kept(index, depth, detail.layers)]
    split = [number for index, number in enumerate(numbers) if is_kept(index, depth, detail.heads)]
    told = f"All heads of all layers would take about {whole / 1e6:.1f} MB. "
    if detail.layers > 1:
        told += f"Of {depth} layers, {_listed(kept)} are kept. "
    told += "The mean over heads is kept for every patch"
    if not split:
        return f"{told}; heads one by one are not."
    told += f"; heads one by one for {'all layers' if len(split) == depth else f'layers {_listed(split)}'}"
    side = detail.queries
    return told + (f", where {side} x {side} patches share one row, their mean." if side > 1 else ".")


def _listed(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
