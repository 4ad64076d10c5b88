"""Targets with one value for each pixel in feeds: read and moved with their images, laid out beside them in memory."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema, Target
from vitrail.errors import BrokenImage

_ALIGN = 8  # bytes


def dense_fields(schema: Schema) -> dict[str, Target]:
    """The fields whose values are pixels."""
    return {name: target for name, target in schema.items() if target.dense is not None}


def dense_bytes(schema: Schema, size: tuple[int, int]) -> int:
    """The bytes that these take for one image of a size."""
    return sum(target.dense.itemsize * prod(size) for target in schema.values() if target.dense is not None)


def fitted(target: Target, value: Tensor, size: tuple[int, int], fit: Preprocess, *, image: str) -> Tensor:
    """The pixels of one image of a height and width, moved as `fit` moves the image; BrokenImage if sizes differ."""
    pixels = target.load(value)
    if pixels.numel() > 1 and tuple(pixels.shape) != size:
        raise BrokenImage(
            f"{image} has {size[1]} x {size[0]} pixels, its {target.field} ({target.text(value)}) {pixels.shape[1]} x "
            f"{pixels.shape[0]}; they must be the same"
        )
    return target.move(pixels[None], fit.maps(torch.tensor([size])), fit.image_size)[0]  # H W


def also_called(number: int) -> str:
    """The name in a `SampleLayout` of an image at another size: no field of a schema begins so."""
    return f" {number}"


class SampleLayout:
    """Where the image and the pixels of targets of one sample lie in a row of bytes; the image is called "".

    `more` are other ways to fit it, for images that are wanted at several sizes.
    """

    def __init__(self, fit: Preprocess, schema: Schema, more: Sequence[Preprocess] = ()) -> None:
        self.parts: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"": (torch.uint8, (fit.channels, *fit.image_size))}
        for name, target in dense_fields(schema).items():
            assert target.dense is not None  # noqa: S101  (just chosen by that)
            shapes[name] = (target.dense, fit.image_size)
        for number, other in enumerate(more):
            shapes[also_called(number)] = (torch.uint8, (other.channels, *other.image_size))
        self.stride = 0
        for name, (dtype, shape) in shapes.items():
            count = prod(shape) * dtype.itemsize
            self.parts[name] = (self.stride, self.stride + count, dtype, shape)
            self.stride += -(-count // _ALIGN) * _ALIGN

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The parts of rows of bytes: ... stride uint8 -> ... shape by name."""
        return {
            name: rows[..., start:stop].view(dtype).unflatten(-1, shape)
            for name, (start, stop, dtype, shape) in self.parts.items()
        }

    def empty(self, count: int, *, pinned: bool) -> dict[str, Tensor]:
        """Room for a batch, by name."""
        return {
            name: torch.empty(count, *shape, dtype=dtype, pin_memory=pinned)
            for name, (_, _, dtype, shape) in self.parts.items()
        }
