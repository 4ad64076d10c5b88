"""Large images in windows of the size that a model was built for, whose outputs are averaged where they overlap."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import InputError

Size = tuple[int, int]


def in_windows(run: Callable[[Tensor], Tensor], images: Tensor, window: Size, *, overlap: float = 0.5) -> Tensor:
    """B C H W -> B K H W, where `run` takes windows B C *window to B K *window.

    Windows lie at even distances, at least the share `overlap` of each over the next, and end at the edges.
    """
    height, width = images.shape[2:]
    if height < window[0] or width < window[1]:
        raise InputError(f"images are {height} x {width}; windows of {window[0]} x {window[1]} need larger ones")
    total: Tensor | None = None
    count = images.new_zeros(1, 1, height, width)
    for top in starts(height, window[0], overlap):
        for left in starts(width, window[1], overlap):
            rows, columns = slice(top, top + window[0]), slice(left, left + window[1])
            found = run(images[:, :, rows, columns])
            if total is None:
                total = found.new_zeros(images.shape[0], found.shape[1], height, width)
            total[:, :, rows, columns] += found
            count[:, :, rows, columns] += 1
    assert total is not None  # noqa: S101  (there is at least one window)
    return total / count.to(total.dtype)


def starts(length: int, window: int, overlap: float) -> list[int]:
    """The first pixel of each window along a side: at even distances, the last at the end."""
    if length == window:
        return [0]
    step = max(int(window * (1 - overlap)), 1)
    count = -(-(length - window) // step) + 1
    return torch.linspace(0, length - window, count).round().long().tolist()
