"""Embeddings at the start of a model or a stage: strided convolutions with norms."""

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from vitrail.layers.conv import ConvNorm
from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import Grid, PatchConv
from vitrail.layers.stage import to_map


class Window(NamedTuple):
    """Kernel, stride and padding of the convolution that embeds the input of a stage."""

    kernel: int
    stride: int
    padding: int = 0

    def grid(self, size: Grid) -> Grid:
        """The grid after the convolution."""
        height, width = ((length + 2 * self.padding - self.kernel) // self.stride + 1 for length in size)
        return height, width


class ConvEmbed(nn.Module):
    """B C H W -> B D h w: a convolution and a norm (PVT, arXiv:2102.12122; overlapping: CvT, arXiv:2103.15808)."""

    def __init__(self, channels: int, dim: int, window: Window, *, norm: NormConfig) -> None:
        super().__init__()
        self.window = window
        self.projection = PatchConv(channels, dim, window.kernel, stride=window.stride, padding=window.padding)
        self.norm = norm.build(dim)

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        return to_map(self.norm(self.projection(maps)), self.window.grid((maps.shape[2], maps.shape[3])))


def halving_stem(channels: int, dim: int, halvings: int, *, activation: type[nn.Module]) -> nn.Sequential:
    """3 x 3 convolutions with batch norms that halve the image and double the width: B C H W -> B D h w, rounded up.

    A transformer after a few of them is easier to train (Xiao et al. 2021, arXiv:2106.14881).
    """
    widths = [channels, *(dim >> left for left in reversed(range(halvings)))]
    steps = [
        ConvNorm(before, after, 3, stride=2, activation=None if index == halvings - 1 else activation())
        for index, (before, after) in enumerate(pairwise(widths))
    ]
    return nn.Sequential(*steps)
