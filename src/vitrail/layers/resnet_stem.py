"""Hybrid patch embedding: patches of the feature map of a ResNet (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers.conv import ResidualBlock
from vitrail.layers.patch import Grid, PatchConfig, PatchConv, patch_grid


@dataclass(frozen=True, kw_only=True)
class ResNetPatchConfig(PatchConfig, kind="resnet"):
    """A BiT ResNet (Kolesnikov et al. 2019, arXiv:1912.11370), then one linear map per patch of its feature map.

    The stem has the width `width` and stride 4; `depths` are the blocks of each stage. The first stage has four times
    the width, each later one doubles the width and halves the resolution. `size` is in pixels of the feature map.
    """

    size: tuple[Count, Count] = (8, 8)
    depths: tuple[Count, ...] = ()
    width: Count = 64

    @property
    def scale(self) -> int:
        """The stride of the feature map, in pixels of the image."""
        return 4 << max(len(self.depths) - 1, 0)

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens for an image of H W pixels, or an error that names a size that fits."""
        step = (self.size[0] * self.scale, self.size[1] * self.scale)
        return patch_grid(image_size, step, step)

    def build(self, channels: int, dim: int) -> nn.Module:
        """The layer: B C H W -> B N D, rows first."""
        return ResNetPatch(channels, dim, self)


class ResNetPatch(nn.Module):
    """B C H W -> B N D: stem, stages, projection."""

    def __init__(self, channels: int, dim: int, config: ResNetPatchConfig) -> None:
        super().__init__()
        self.stem = StdConvNorm(channels, config.width, 7, stride=2, activation=nn.ReLU())
        self.stages = nn.ModuleList()
        before = config.width
        for stage, depth in enumerate(config.depths):
            after = config.width * 4 << stage
            block = partial(ResidualBlock, bottleneck=True, gain=0.0, layer=StdConvNorm)
            first = block(before, after, stride=2 if stage else 1)
            self.stages.append(nn.Sequential(first, *(block(after, after) for _ in range(depth - 1))))
            before = after
        self.projection = PatchConv(before, dim, config.size, stride=config.size)

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B N D."""
        maps = self.stem(images)
        maps = F.max_pool2d(pad_same(maps, (3, 3), (2, 2), value=-math.inf), 3, stride=2)
        for stage in self.stages:
            maps = stage(maps)
        return self.projection(maps)


class StdConvNorm(nn.Module):
    """Standardised convolution, group norm, activation: B C H W -> B D h w (Wu and He 2018, arXiv:1803.08494).

    `gain` is the initial gain of the norm; the norm has 32 groups, or fewer if the width is not divisible by 32.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        kernel: int,
        *,
        stride: int = 1,
        activation: nn.Module | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.conv = StdConv(channels, dim, kernel, stride=stride, bias=False)
        self.norm = nn.GroupNorm(math.gcd(32, dim), dim)
        nn.init.constant_(self.norm.weight, gain)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        return self.activation(self.norm(self.conv(maps)))


class StdConv(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1: B C H W -> B D h w (Qiao et al., arXiv:1903.10520)."""

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))  # eps vanishes in bfloat16
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        standard = ((weight - mean) * torch.rsqrt(variance + 1e-8)).to(self.weight.dtype)
        rows, columns = self.kernel_size
        return F.conv2d(pad_same(maps, (rows, columns), (self.stride[0], self.stride[1])), standard, stride=self.stride)


def pad_same(maps: Tensor, kernel: tuple[int, int], stride: tuple[int, int], value: float = 0.0) -> Tensor:
    """Pads B C H W as TensorFlow's "SAME" does; the odd pixel is added at the end."""
    (top, bottom), (left, right) = (
        _padding(length, window, step) for length, window, step in zip(maps.shape[2:], kernel, stride, strict=True)
    )
    return F.pad(maps, (left, right, top, bottom), value=value)


def _padding(length: int, window: int, step: int) -> tuple[int, int]:
    total = max((-(-length // step) - 1) * step + window - length, 0)
    return total // 2, total - total // 2
