"""Where a model or a stage begins: strided convolutions, overlapping or not, with norms."""

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from vitrail.layers.conv import ConvNorm
from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import Grid, PatchConv
from vitrail.layers.stage import to_map


class Window(NamedTuple):
    """What one token of a stage is made from: `kernel` x `kernel` of the stage before, every `stride`, with padding."""

    kernel: int
    stride: int
    padding: int = 0

    def grid(self, size: Grid) -> Grid:
        """The grid that a map of this size becomes."""
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

    Before tokens are made by a few of them, a transformer trains more easily (Xiao et al. 2021, arXiv:2106.14881).
    """
    widths = [channels, *(dim >> left for left in reversed(range(halvings)))]
    steps = [
        ConvNorm(before, after, 3, stride=2, activation=None if index == halvings - 1 else activation())
        for index, (before, after) in enumerate(pairwise(widths))
    ]
    return nn.Sequential(*steps)
