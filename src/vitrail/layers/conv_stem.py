"""A stem of convolutions instead of a patch embedding."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers.conv import ConvNorm
from vitrail.layers.patch import Grid, PatchConfig, patch_grid


@dataclass(frozen=True, kw_only=True)
class ConvStemConfig(PatchConfig, kind="conv"):
    """3 x 3 convolutions that each halve the image, then a linear map (Xiao et al. 2021, arXiv:2106.14881).

    There are `convs` convolutions of each width; the last of them halves the image, those in the middle are residual.
    """

    halvings: Count = 3
    convs: Count = 1

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens for an image of H W pixels, or an error that names a size that fits."""
        step = (2**self.halvings, 2**self.halvings)
        return patch_grid(image_size, step, step)

    def build(self, channels: int, dim: int) -> nn.Module:
        """The layer: B C H W -> B N D, rows first."""
        return ConvStem(channels, dim, self)


class ConvStem(nn.Module):
    """B C H W -> B N D: the width doubles with each halving, up to that of the tokens."""

    def __init__(self, channels: int, dim: int, config: ConvStemConfig) -> None:
        super().__init__()
        self.steps = nn.Sequential()
        for halvings_left in reversed(range(config.halvings)):
            width = max(dim >> halvings_left, 1)
            for left in reversed(range(config.convs)):
                if 0 < left < config.convs - 1:
                    self.steps.append(_Residual(width))
                else:
                    stride = 1 if left else 2
                    self.steps.append(ConvNorm(channels, width, 3, stride=stride, activation=nn.ReLU()))
                channels = width
        self.projection = nn.Conv2d(channels, dim, 1)

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B N D."""
        return self.projection(self.steps(images)).flatten(2).transpose(1, 2)  # B D h w -> B N D


class _Residual(nn.Module):
    """relu(x + norm(conv x)): B D h w -> B D h w."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.branch = ConvNorm(dim, dim, 3)
        self.activation = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return self.activation(maps + self.branch(maps))
