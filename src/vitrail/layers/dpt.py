"""The layers of DPT (arXiv:2103.13413): tokens as maps of any resolution, and their fusion from coarse to fine."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map


class Reassemble(nn.Module):
    """Patches -> a map of `width` channels, larger or smaller by `scale`: B N D -> B C h*scale w*scale.

    With `readout`, the first prefix token, the class, is joined to each patch by a linear map with GELU.
    """

    def __init__(self, dim: int, width: int, scale: float, *, readout: bool) -> None:
        super().__init__()
        self.readout = nn.Linear(2 * dim, dim) if readout else None
        self.project = nn.Conv2d(dim, width, 1)
        if scale > 1:
            self.resize: nn.Module = nn.ConvTranspose2d(width, width, int(scale), stride=int(scale))
        elif scale < 1:
            self.resize = nn.Conv2d(width, width, 3, stride=int(1 / scale), padding=1)
        else:
            self.resize = nn.Identity()

    def forward(self, patches: Tensor, grid: Grid, prefix: Tensor) -> Tensor:
        """B N D, and the prefix tokens B P D -> B C h w."""
        if self.readout is not None:
            classes = prefix[:, :1].expand_as(patches)
            patches = F.gelu(self.readout(torch.cat([patches, classes], dim=2)))
        return self.resize(self.project(to_map(patches, grid)))


class ResidualUnit(nn.Module):
    """Two 3 x 3 convolutions, each after a ReLU, added to the input: B D h w -> B D h w."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(dim, dim, 3, padding=1) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return maps + self.conv2(F.relu(self.conv1(F.relu(maps))))


class Fusion(nn.Module):
    """A level, added to what was fused of coarser ones, at twice the resolution: B D h w -> B D 2h 2w.

    The `first` level has nothing to be added to.
    """

    def __init__(self, dim: int, *, first: bool = False) -> None:
        super().__init__()
        self.enter = None if first else ResidualUnit(dim)
        self.leave = ResidualUnit(dim)
        self.project = nn.Conv2d(dim, dim, 1)

    def forward(self, level: Tensor, fused: Tensor | None = None) -> Tensor:
        """B D h w, and the coarser levels B D h w -> B D 2h 2w."""
        if fused is not None and self.enter is not None:
            if level.shape != fused.shape:
                level = F.interpolate(level, size=fused.shape[2:], mode="bilinear", align_corners=False)
            level = fused + self.enter(level)
        grown = F.interpolate(self.leave(level), scale_factor=2.0, mode="bilinear", align_corners=True)
        return self.project(grown)
