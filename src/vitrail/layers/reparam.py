"""Structural re-parameterisation: several branches in training, one convolution in inference.

RepVGG (Ding et al. 2021, arXiv:2101.03697), MobileOne (Vasu et al. 2022, arXiv:2206.04040), RepLKNet (Ding et al. 2022,
arXiv:2203.06717), FastViT (Vasu et al. 2023, arXiv:2303.14189).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.conv import ConvNorm, SqueezeExcite, depthwise
from vitrail.layers.fuse import Fusable, fold_batch_norm, with_weights
from vitrail.layers.residual import LayerScale
from vitrail.layers.stage import OnTokens


class RepConv(Fusable):
    """The sum of convolutions of several sizes, each with a batch norm, and with `identity` of a batch norm alone.

    B C H W -> B D h w. In evaluation all are linear, so their sum is one convolution of the largest size.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        kernels: Sequence[int],
        *,
        stride: int = 1,
        groups: int = 1,
        identity: bool = False,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.branches = nn.ModuleList(
            ConvNorm(channels, dim, kernel, stride=stride, groups=groups) for kernel in kernels
        )
        self.identity = nn.BatchNorm2d(channels) if identity else None

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        parts = [branch(maps) for branch in self.branches]
        if self.identity is not None:
            parts.append(self.identity(maps))
        total: Tensor = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    @torch.no_grad()
    def fused(self) -> nn.Conv2d:
        """One convolution with a bias."""
        convs = [fold_batch_norm(each.conv, each.norm) for each in self.branches if isinstance(each, ConvNorm)]
        if self.identity is not None:
            convs.append(fold_batch_norm(identity_conv(self.identity, self.groups), self.identity))
        largest = max(convs, key=lambda conv: conv.kernel_size[0])
        weights = [padded(conv.weight, largest.kernel_size[0]) for conv in convs]
        return with_weights(largest, sum_of(weights), sum_of([conv.bias for conv in convs]))


class RepMixer(Fusable):
    """Token mixing by depth-wise convolutions on a residual branch: B D h w -> B D h w.

    x + gain (mix(x) - norm(x)), which is one depth-wise convolution in evaluation (arXiv:2303.14189, equation 3).
    """

    def __init__(self, dim: int, *, kernel: int = 3, layer_scale: float = 1e-5) -> None:
        super().__init__()
        self.norm = RepConv(dim, dim, (), groups=dim, identity=True)
        self.mixer = RepConv(dim, dim, (kernel, 1), groups=dim, identity=True)
        self.scale = OnTokens(LayerScale(dim, layer_scale))

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return maps + self.scale(self.mixer(maps) - self.norm(maps))

    @torch.no_grad()
    def fused(self) -> nn.Conv2d:
        """One depth-wise convolution with a bias."""
        mixer, norm = self.mixer.fused(), self.norm.fused()
        gain = self.scale.get_parameter("layer.gain")
        difference = mixer.weight - padded(norm.weight, mixer.kernel_size[0])  # D 1 k k
        bias = gain * (sum_of([mixer.bias]) - sum_of([norm.bias]))
        return with_weights(mixer, with_identity(gain[:, None, None, None] * difference), bias)


class RepPosition(Fusable):
    """Conditional positions: adds a depth-wise convolution: B D h w -> B D h w (arXiv:2102.10882)."""

    def __init__(self, dim: int, *, kernel: int = 7) -> None:
        super().__init__()
        self.conv = depthwise(dim, kernel)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return maps + self.conv(maps)

    @torch.no_grad()
    def fused(self) -> nn.Conv2d:
        """One depth-wise convolution with a bias."""
        return with_weights(self.conv, with_identity(self.conv.weight), sum_of([self.conv.bias]))


def mobile_one(
    channels: int, dim: int, kernel: int, *, stride: int = 1, groups: int = 1, squeeze: int = 0
) -> nn.Sequential:
    """MobileOne's block, B C H W -> B D h w: a convolution, a 1 x 1 one, the identity if shapes are equal, then GELU.

    `squeeze` is the hidden width of a squeeze-excite before the activation, 0 for none.
    """
    kernels = (kernel, 1) if kernel > 1 else (1,)
    identity = channels == dim and stride == 1
    gate = [SqueezeExcite(dim, squeeze)] if squeeze else []
    return nn.Sequential(
        RepConv(channels, dim, kernels, stride=stride, groups=groups, identity=identity), *gate, nn.GELU()
    )


def identity_conv(like: nn.BatchNorm2d, groups: int) -> nn.Conv2d:
    """A 1 x 1 convolution that is the identity, for the channels of a norm."""
    conv = nn.Conv2d(like.num_features, like.num_features, 1, groups=groups, bias=False)
    nn.init.dirac_(conv.weight, groups)
    return conv.to(like.weight).train(like.training)


def padded(weight: Tensor, kernel: int) -> Tensor:
    """The weights of a convolution, padded with zeros to a larger kernel: D C k k -> D C kernel kernel."""
    margin = (kernel - weight.shape[-1]) // 2
    return F.pad(weight, (margin,) * 4)


def with_identity(weight: Tensor) -> Tensor:
    """The weights D 1 k k of a depth-wise convolution, plus the identity."""
    centre = torch.ones_like(weight[..., :1, :1])
    return weight + padded(centre, weight.shape[-1])


def sum_of(parts: Sequence[Tensor | None]) -> Tensor:
    """The sum of tensors; None is skipped."""
    return torch.stack([part for part in parts if part is not None]).sum(dim=0)
