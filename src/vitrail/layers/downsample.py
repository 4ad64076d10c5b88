"""Downsampling: from images to the first feature map, and from one stage to the next."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import PatchConfig
from vitrail.layers.stage import to_map


class PatchStem(nn.Module):
    """Patch embedding as a map, with an optional norm: B C H W -> B D h w."""

    def __init__(self, channels: int, dim: int, *, patch: PatchConfig, norm: NormConfig | None = None) -> None:
        super().__init__()
        self.grid = patch.grid
        self.patch = patch.build(channels, dim)
        self.norm = nn.Identity() if norm is None else norm.build(dim)

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        return to_map(self.norm(self.patch(images)), self.grid((images.shape[2], images.shape[3])))


class PatchMerge(nn.Module):
    """Merges 2 x 2 patches into one: B C H W -> B D H/2 W/2; odd sizes are padded with zeros.

    The norm is before the linear map (Swin, arXiv:2103.14030) or after it (Swin v2, arXiv:2111.09883).
    """

    def __init__(self, channels: int, dim: int, *, norm: NormConfig, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm = norm.build(4 * channels if norm_first else dim)
        self.reduction = nn.Linear(4 * channels, dim, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D h w."""
        height, width = maps.shape[2:]
        maps = F.pad(maps.permute(0, 2, 3, 1), (0, 0, 0, width % 2, 0, height % 2))  # B H W C
        four = maps.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # B h 2 w 2 C
        four = four.permute(0, 1, 3, 4, 2, 5).flatten(3)  # B h w 4C: column by column, as in the authors' code
        merged = self.reduction(self.norm(four)) if self.norm_first else self.norm(self.reduction(four))
        return merged.permute(0, 3, 1, 2)  # B D h w
