"""Patch embedding, overlapping or not."""

from abc import abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice, Count, CountFromZero
from vitrail.errors import InputError

Grid = tuple[int, int]


class PatchConfig(Choice):
    """How pixels become the first tokens."""

    @abstractmethod
    def grid(self, image_size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens for an image of H W pixels, or an error that names a size that fits."""

    @abstractmethod
    def build(self, channels: int, dim: int) -> nn.Module:
        """The layer: B C H W -> B N D, rows first."""


@dataclass(frozen=True, kw_only=True)
class LinearPatchConfig(PatchConfig, kind="linear"):
    """One linear map per patch; patches overlap where `stride` is smaller than `size`."""

    size: tuple[Count, Count] = (16, 16)
    stride: tuple[Count, Count] | None = None
    padding: tuple[CountFromZero, CountFromZero] = (0, 0)
    bias: bool = True

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens for an image of H W pixels, or an error that names a size that fits."""
        return patch_grid(image_size, self.size, self.stride or self.size, self.padding)

    def build(self, channels: int, dim: int) -> nn.Module:
        """The layer: B C H W -> B N D, rows first."""
        return LinearPatch(channels, dim, self)


def patch_grid(
    image_size: tuple[int, int], size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int] = (0, 0)
) -> Grid:
    """Rows and columns of patches for an image of H W pixels, or an error that names a size that fits."""
    (height, width), (rows, columns), (step_y, step_x), (pad_y, pad_x) = image_size, size, stride, padding
    grid = (height + 2 * pad_y - rows) // step_y + 1, (width + 2 * pad_x - columns) // step_x + 1
    if height % step_y or width % step_x or min(grid) < 1:
        fits = _nearest(height, step_y, rows - 2 * pad_y), _nearest(width, step_x, columns - 2 * pad_x)
        raise InputError(
            f"image size {height} x {width} is not divisible into patches of {rows} x {columns} with stride "
            f"{step_y} x {step_x}; the nearest size that fits is {fits[0]} x {fits[1]}"
        )
    return grid


def _nearest(length: int, step: int, least: int) -> int:
    """The multiple of `step` that is nearest to `length` and not below `least`."""
    return max(round(length / step), -(-least // step), 1) * step


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Cuts B C H W into flat patches B N (C p q), rows first, in the order of a convolution's weights."""
    batch, channels, height, width = images.shape
    rows, columns = height // size[0], width // size[1]
    cut = images.reshape(batch, channels, rows, size[0], columns, size[1])  # B C h p w q
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * size[0] * size[1])


class LinearPatch(nn.Module):
    """B C H W -> B N D: one linear map of every patch (arXiv:2010.11929)."""

    def __init__(self, channels: int, dim: int, config: LinearPatchConfig) -> None:
        super().__init__()
        stride = config.stride or config.size
        self.projection = PatchConv(channels, dim, config.size, stride, config.padding, bias=config.bias)

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B N D."""
        return self.projection(images)


class PatchConv(nn.Conv2d):
    """A convolution that returns tokens: B C H W -> B N D."""

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B N D."""
        if self.stride != self.kernel_size or self.padding != (0, 0):
            return super().forward(images).flatten(2).transpose(1, 2)  # B D h w -> B N D
        # Without overlap it is a matrix product, which is much faster than cuDNN's convolution in bf16: 0.22 ms instead
        # of 2.15 ms for a batch of 256 of ViT-B/16 on an H200.
        return F.linear(patchify(images, (self.kernel_size[0], self.kernel_size[1])), self.weight.flatten(1), self.bias)
