"""Deformable attention in loops that read the paper word by word, for the tests of the layer and of DAT."""

import math

import torch
from torch import Tensor

from vitrail.layers.attention import DeformableAttention


def read_by_hand(picture: Tensor, y: float, x: float) -> Tensor:
    """C h w at a place in pixels, as the mean of four pixels by the areas opposite to them; zero outside."""
    found = torch.zeros(len(picture), dtype=picture.dtype)
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < picture.shape[1] and 0 <= column < picture.shape[2]:
                found += picture[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return found


def by_hand(layer: DeformableAttention, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """One image N D -> N D, point by point."""
    (rows, columns), groups, heads, width = grid, layer.groups, layer.num_heads, layer.head_dim
    queries = layer.q(tokens)
    picture, queries_map = tokens.T.unflatten(1, grid), queries.T.unflatten(1, grid)
    table = layer.relative.table  # A 2h-1 2w-1
    per_group, out = len(picture) // groups, torch.zeros_like(tokens)
    places, read = [], []
    for group in range(groups):
        channels = slice(group * per_group, (group + 1) * per_group)
        moves = layer.offsets(queries_map[None, channels])[0].tanh()  # 2 h' w'
        points = []
        for i in range(moves.shape[1]):
            for j in range(moves.shape[2]):
                y = (i + 0.5) / moves.shape[1] + moves[0, i, j].item() * layer.reach / moves.shape[1] / 2  # 0 to 1
                x = (j + 0.5) / moves.shape[2] + moves[1, i, j].item() * layer.reach / moves.shape[2] / 2
                points.append((y, x))
        read.append(
            torch.stack([read_by_hand(picture[channels], y * (rows - 1), x * (columns - 1)) for y, x in points])
        )
        places.append(points)
    keys, values = layer.kv(torch.cat(read, dim=1)).chunk(2, dim=1)  # M D each
    for head in range(heads):
        own, points = slice(head * width, (head + 1) * width), places[head // (heads // groups)]
        for n in range(rows * columns):
            here = ((n // columns + 0.5) / rows, (n % columns + 0.5) / columns)
            logits = keys[:, own] @ queries[n, own] / math.sqrt(width)
            for m, (y, x) in enumerate(points):
                # An offset of a whole map to the left or right lies at the end of the table.
                at = (1 + here[0] - y) * (rows - 1), (1 + here[1] - x) * (columns - 1)
                logits[m] += read_by_hand(table[head : head + 1], *at)[0]
            out[n, own] = logits.softmax(dim=0) @ values[:, own]
    return layer.projection(out)
