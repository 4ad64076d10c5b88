"""The outline of a part of the picture, such as a box or the pixels of a class, as a path of SVG."""

import torch
import torch.nn.functional as F
from torch import Tensor


def outline_path(part: Tensor) -> str:
    """The edges of the true pixels H W as lines, in shares of the sides: "M.25 .5H.75M.25 .5V1"; empty for none."""
    height, width = part.shape
    inside = F.pad(part.to(torch.int8), (1, 1, 1, 1))  # an edge is where a pixel differs from its neighbour
    flat = _runs(inside[1:, 1:-1] != inside[:-1, 1:-1])  # H+1 W
    upright = _runs((inside[1:-1, 1:] != inside[1:-1, :-1]).T)  # W+1 H
    lines = [f"M{_share(first, width)} {_share(at, height)}H{_share(last, width)}" for at, first, last in flat]
    lines += [f"M{_share(at, width)} {_share(first, height)}V{_share(last, height)}" for at, first, last in upright]
    return "".join(lines)


def _runs(edges: Tensor) -> list[tuple[int, int, int]]:
    """The row, the first and the last position of each run of true values in rows M N."""
    change = F.pad(edges.to(torch.int8), (1, 1)).diff(dim=1)  # M N+1
    first, last = (change == 1).nonzero(), (change == -1).nonzero()
    return [(int(row), int(start), int(end)) for (row, start), (_, end) in zip(first, last, strict=True)]


def _share(position: int, total: int) -> str:
    return f"{position / total:.4g}"
