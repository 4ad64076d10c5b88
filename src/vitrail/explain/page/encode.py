"""Attention and maps as text inside a page: quantised to 32 levels, compressed, and as much of it as fits.

A row is stored as its largest weight (16 bits) and the square root of every weight's share of it (5 bits), which is
finer for small weights. If all heads of all layers do not fit, `levels_of_detail` says what is left out, step by step.
"""

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.explain.attention.cells import LayerView, cell_of_patch
from vitrail.layers.patch import Grid

LEVELS = 31
MAX_MAP_SIDE = 96  # pixels of the longer side of a stored saliency map
_QUERIES = (1, 2, 3, 4)  # sides of the groups of cells whose rows are stored as one mean, for each head


class Detail(NamedTuple):
    """How much of the attention is stored."""

    layers: int  # every n-th layer, counted from the last
    heads: int  # every n-th layer with single heads; 0: none
    queries: int  # cells a side whose rows are stored as one mean


def levels_of_detail(depth: int) -> Iterator[Detail]:
    """From everything to the least: the mean over heads of the last layer only."""
    yield from (Detail(1, 1, queries) for queries in _QUERIES)
    every = [number for number in (2, 3, 4, 6, 8, 12, 24) if number < depth]
    yield from (Detail(1, number, _QUERIES[-1]) for number in every)
    yield Detail(1, 0, 1)
    yield from (Detail(number, 0, 1) for number in [*every, depth] if number > 1)


def is_kept(index: int, depth: int, every: int) -> bool:
    """Whether a layer is one of every n-th, counted from the last."""
    return every > 0 and (depth - 1 - index) % every == 0


def coarse_rows(weights: Tensor, cells: Grid, num_prefix: int, queries: int) -> Tensor:
    """A P+G C -> A P+g C: the rows of `queries` x `queries` cells as their mean."""
    if queries == 1:
        return weights
    heads, _, columns = weights.shape
    groups = cell_of_patch(cells, queries).to(weights.device)  # G
    count = int(groups.max()) + 1
    means = weights.new_zeros(heads, count, columns, dtype=torch.float32)
    means.index_add_(1, groups, weights[:, num_prefix:].float())
    sizes = torch.bincount(groups, minlength=count)[None, :, None]  # 1 g 1
    return torch.cat([weights[:, :num_prefix].float(), means / sizes], dim=1)


def encode_rows(weights: Tensor) -> str:
    """M R C weights from 0 to 1 -> text: M R maxima as uint16, then M R C shares as uint8; compressed, base64."""
    weights = weights.detach().float().cpu().clamp(0, 1)
    most = (weights.amax(dim=-1) * 65535).round()  # M R
    scale = (most / 65535).clamp_min(1e-9)[..., None]
    shares = ((weights / scale).clamp(0, 1).sqrt() * LEVELS).round()
    return _text(most.numpy().astype("<u2").tobytes() + shares.to(torch.uint8).numpy().tobytes())


def encode_map(values: Tensor) -> dict[str, Any]:
    """A saliency map H W as text: its range in 256 levels, at most 96 pixels a side."""
    values = values.detach().float().cpu()
    scale = min(1.0, MAX_MAP_SIDE / max(values.shape))
    size = (max(1, round(values.shape[0] * scale)), max(1, round(values.shape[1] * scale)))
    if scale < 1:
        values = torch.nn.functional.interpolate(values[None, None], size=size, mode="area")[0, 0]
    low, high = float(values.min()), float(values.max())
    bytes_ = ((values - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8).numpy().tobytes()
    return {"size": list(size), "low": low, "high": high, "data": _text(bytes_)}


def encode_layers(views: Sequence[Sequence[LayerView]], budget: int) -> tuple[list[list[dict[str, Any]]], str]:
    """The attention of all views in at most `budget` characters if possible, and a sentence on what is left out.

    Each layer has its name, grid and cells; `mean` is the mean over heads, `heads` are the single heads.
    """
    depth = max((len(layers) for layers in views), default=0)
    if not depth:
        return [[] for _ in views], ""
    whole, packs = 0.0, [[_Pack(layer) for layer in layers] for layers in views]
    for detail in levels_of_detail(depth):
        written, size = list[list[dict[str, Any]]](), 0
        for layers in packs:
            written.append(_written(layers, detail))
            size += sum(len(one.get(key, "")) for one in written[-1] for key in ("mean", "heads"))
            if size > budget:
                break
        whole = whole or size * len(views) / len(written)  # pictures compress about equally well
        if size <= budget:
            break
    written += [_written(layers, detail) for layers in packs[len(written) :]]  # if not even the least fits
    longest = max(views, key=len)
    return written, _left_out(detail, whole, [layer.index for layer in longest])


class _Pack:
    """A layer, and its encoded parts."""

    def __init__(self, layer: LayerView) -> None:
        self.layer = layer
        self._texts: dict[int, str] = {}

    def heads(self, queries: int) -> str:
        """The single heads, `queries` x `queries` cells in one row."""
        layer = self.layer
        if queries not in self._texts:
            rows = coarse_rows(layer.weights, layer.cells, len(layer.prefix), queries)
            self._texts[queries] = encode_rows(rows)
        return self._texts[queries]

    def mean(self) -> str:
        """The mean over heads, every row."""
        if 0 not in self._texts:
            self._texts[0] = encode_rows(self.layer.weights.float().mean(dim=0, keepdim=True))
        return self._texts[0]


def _written(layers: Sequence[_Pack], detail: Detail) -> list[dict[str, Any]]:
    encoded = []
    for index, pack in enumerate(layers):
        if not is_kept(index, len(layers), detail.layers):
            continue
        layer, heads = pack.layer, len(pack.layer.weights)
        one: dict[str, Any] = {
            "index": layer.index,
            "name": layer.name,
            "grid": list(layer.grid),
            "side": layer.side,
            "cells": list(layer.cells),
            "prefix": list(layer.prefix),
            "count": heads,
        }
        if is_kept(index, len(layers), detail.heads) and heads > 1:
            one |= {"queries": detail.queries, "heads": pack.heads(detail.queries)}
        if "heads" not in one or detail.queries > 1:  # the page computes the mean of all heads itself
            one["mean"] = pack.mean()
        encoded.append(one)
    return encoded


def _left_out(detail: Detail, whole: float, indices: Sequence[int]) -> str:
    if detail == Detail(1, 1, 1):
        return ""
    depth = len(indices)
    kept = [index for place, index in enumerate(indices) if is_kept(place, depth, detail.layers)]
    split = [index for place, index in enumerate(indices) if is_kept(place, depth, detail.heads)]
    text = f"All heads of all layers would need about {whole / 1e6:.1f} MB. "
    if detail.layers > 1:
        text += f"Of {depth} layers, {_listed(kept)} are stored. "
    text += "The mean over heads is stored for every patch"
    if not split:
        return f"{text}; single heads are not."
    text += f"; single heads are stored for {'all layers' if len(split) == depth else f'layers {_listed(split)}'}"
    side = detail.queries
    return text + (f", with one row for {side} x {side} patches, their mean." if side > 1 else ".")


def _listed(indices: Sequence[int]) -> str:
    words = [str(index) for index in indices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()
