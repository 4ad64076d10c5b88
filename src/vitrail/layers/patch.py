"""From pixels to tokens: patch embedding, overlapping or not."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.config import Choice
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

    size: tuple[int, int] = (16, 16)
    stride: tuple[int, int] | None = None
    padding: tuple[int, int] = (0, 0)
    bias: bool = True

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens for an image of H W pixels, or an error that names a size that fits."""
        height, width = image_size
        (rows, columns), (step_y, step_x), (pad_y, pad_x) = self.size, self.stride or self.size, self.padding
        if height % step_y or width % step_x:
            fits = (max(round(height / step_y), 1) * step_y, max(round(width / step_x), 1) * step_x)
            raise InputError(
                f"an image of {height} x {width} pixels does not divide into patches with a step of "
                f"{step_y} x {step_x}; the nearest size that does is {fits[0]} x {fits[1]}"
            )
        return (height + 2 * pad_y - rows) // step_y + 1, (width + 2 * pad_x - columns) // step_x + 1

    def build(self, channels: int, dim: int) -> nn.Module:
        """The layer: B C H W -> B N D, rows first."""
        return LinearPatch(channels, dim, self)


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Cuts B C H W into flat patches B N (C p q), rows first, in the order of a convolution's weights."""
    batch, channels, height, width = images.shape
    rows, columns = height // size[0], width // size[1]
    cut = images.reshape(batch, channels, rows, size[0], columns, size[1])  # B C h p w q
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * size[0] * size[1])


class LinearPatch(nn.Module):
    """B C H W -> B N D by a strided convolution, which is a linear map of each flat patch (arXiv:2010.11929)."""

    def __init__(self, channels: int, dim: int, config: LinearPatchConfig) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            channels,
            dim,
            kernel_size=config.size,
            stride=config.stride or config.size,
            padding=config.padding,
            bias=config.bias,
        )

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B N D."""
        return self.projection(images).flatten(2).transpose(1, 2)  # B D h w -> B N D
