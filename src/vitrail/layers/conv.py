"""Convolutional layers that several families share: convolution with norm, squeeze-excite, residual blocks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.layers.fuse import Fusable, fold_batch_norm
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath


def channels_last(images: Tensor) -> Tensor:
    """Images in the memory layout that convolutions of a GPU are fastest in; the compiler chooses its own.

    On a CPU oneDNN crashed with it, or was wrong, in the tests of FastViT, SegFormer and Deformable DETR.
    """
    if not images.is_cuda or torch.compiler.is_compiling():
        return images
    return images.contiguous(memory_format=torch.channels_last)


def coarsened(size: Grid, stride: int) -> Grid:
    """The grid after padded convolutions with a total stride that is a power of two: rounded up."""
    return -(-size[0] // stride), -(-size[1] // stride)


def depthwise(dim: int, kernel: int = 3, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A depth-wise convolution: B D H W -> B D h w."""
    return nn.Conv2d(dim, dim, kernel, stride=stride, padding=kernel // 2, groups=dim, bias=bias)


class ConvNorm(Fusable):
    """Convolution, batch norm, activation: B C H W -> B D h w (Ioffe and Szegedy 2015, arXiv:1502.03167).

    With a stride of 1 the padding keeps the size. `gain` is the initial gain of the norm: with 0, a residual branch
    that ends here starts at zero.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        activation: nn.Module | None = None,
        eps: float = 1e-5,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(dim, eps=eps)
        nn.init.constant_(self.norm.weight, gain)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        return self.activation(self.norm(self.conv(maps)))

    def fused(self) -> nn.Module:
        """A convolution with a bias, and the activation."""
        conv = fold_batch_norm(self.conv, self.norm)
        return conv if isinstance(self.activation, nn.Identity) else nn.Sequential(conv, self.activation)


class SqueezeExcite(nn.Module):
    """Gates each channel by the mean of all channels: B D h w -> B D h w (Hu et al. 2017, arXiv:1709.01507)."""

    def __init__(self, dim: int, hidden: int, *, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(dim, hidden, 1)
        self.activation = activation()
        self.expand = nn.Conv2d(hidden, dim, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        mean = maps.mean(dim=(2, 3), keepdim=True)  # B D 1 1
        gate: Tensor = self.expand(self.activation(self.reduce(mean))).sigmoid()
        return maps * gate


class InvertedResidual(nn.Module):
    """Expand, depth-wise convolution, project: B C H W -> B D h w (Sandler et al. 2018, arXiv:1801.04381).

    `squeeze` is the hidden width of a squeeze-excite after the convolution, 0 for none (MBConv, arXiv:1905.11946).
    There is no expansion if `hidden` equals `channels`; the input is added to the output if their shapes are equal.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        kernel: int = 3,
        *,
        hidden: int,
        stride: int = 1,
        activation: type[nn.Module] = nn.SiLU,
        squeeze: int = 0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == dim
        self.expand: nn.Module = nn.Identity()
        if hidden != channels:
            self.expand = ConvNorm(channels, hidden, 1, activation=activation(), eps=eps)
        self.filter = ConvNorm(hidden, hidden, kernel, stride=stride, groups=hidden, activation=activation(), eps=eps)
        self.squeeze = SqueezeExcite(hidden, squeeze, activation=activation) if squeeze else nn.Identity()
        self.project = ConvNorm(hidden, dim, 1, eps=eps)
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        branch: Tensor = self.project(self.squeeze(self.filter(self.expand(maps))))
        return maps + self.drop_path(branch) if self.residual else branch


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + branch(x)): B C H W -> B D h w (He et al. 2015, arXiv:1512.03385).

    The branch is two 3 x 3 convolutions, or a bottleneck whose inner width is a quarter. `layer` builds each
    convolution with its norm and activation; `gain` is the initial gain of the norm at the end of the branch.
    `average` takes the mean of pixels before a strided shortcut (arXiv:1812.01187); `project` gives it a convolution
    also where the shapes are equal.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        *,
        bottleneck: bool,
        stride: int = 1,
        gain: float = 1.0,
        drop_path: float = 0.0,
        layer: Callable[..., nn.Module] = ConvNorm,
        average: bool = False,
        project: bool = False,
    ) -> None:
        super().__init__()
        if bottleneck:
            hidden = max(dim // 4, 1)
            self.branch = nn.Sequential(
                layer(channels, hidden, 1, activation=nn.ReLU()),
                layer(hidden, hidden, 3, stride=stride, activation=nn.ReLU()),
                layer(hidden, dim, 1, gain=gain),
            )
        else:
            self.branch = nn.Sequential(
                layer(channels, dim, 3, stride=stride, activation=nn.ReLU()), layer(dim, dim, 3, gain=gain)
            )
        same = stride == 1 and channels == dim and not project
        if average and stride > 1:
            pool = nn.AvgPool2d(stride, stride, ceil_mode=True)
            self.shortcut: nn.Module = nn.Sequential(pool, layer(channels, dim, 1))
        else:
            self.shortcut = nn.Identity() if same else layer(channels, dim, 1, stride=stride)
        self.drop_path = DropPath(drop_path)
        self.activation = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        return self.activation(self.shortcut(maps) + self.drop_path(self.branch(maps)))
