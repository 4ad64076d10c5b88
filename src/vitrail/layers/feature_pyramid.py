"""Maps of one width at several resolutions: of a staged backbone's levels, or of the one map of a plain ViT."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.layers.stage import OnTokens


class LevelProjection(nn.Module):
    """Levels B C h w of any width -> levels B D h w; missing ones are made coarser with stride 2.

    As in Deformable DETR (arXiv:2010.04159): a 1 x 1 convolution for each level that there is, a 3 x 3 convolution
    of the coarsest input level for the first that is missing, and of the level before for each further one.
    """

    def __init__(self, widths: Sequence[int], dim: int, *, levels: int) -> None:
        super().__init__()
        if levels < len(widths):
            widths = widths[len(widths) - levels :]
        self.given = len(widths)
        maps = [nn.Conv2d(width, dim, 1) for width in widths]
        wide = widths[-1]
        for _ in range(levels - len(widths)):
            maps.append(nn.Conv2d(wide, dim, 3, stride=2, padding=1))
            wide = dim
        self.maps = nn.ModuleList(nn.Sequential(conv, nn.GroupNorm(math.gcd(32, dim), dim)) for conv in maps)
        for conv in maps:
            nn.init.xavier_uniform_(conv.weight)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """B C h w each, fine to coarse -> B D h w each; the finest are left out where there are too many."""
        levels = levels[len(levels) - self.given :]
        found = [project(level) for project, level in zip(self.maps, levels, strict=False)]
        for project in list(self.maps)[self.given :]:
            found.append(project(levels[-1] if len(found) == self.given else found[-1]))
        return found


class SimplePyramid(nn.Module):
    """Three levels of a plain ViT's one map, at twice, once and half its resolution (ViTDet, arXiv:2203.16527)."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        half = max(width // 2, 1)
        scales = (
            (nn.ConvTranspose2d(width, half, 2, stride=2), half),
            (nn.Identity(), width),
            (nn.MaxPool2d(2, stride=2, ceil_mode=True), width),
        )
        self.levels = nn.ModuleList(
            nn.Sequential(
                scale,
                nn.Conv2d(inner, dim, 1, bias=False),
                OnTokens(nn.LayerNorm(dim, eps=1e-6)),
                nn.Conv2d(dim, dim, 3, padding=1, bias=False),
                OnTokens(nn.LayerNorm(dim, eps=1e-6)),
            )
            for scale, inner in scales
        )

    def forward(self, maps: Tensor) -> list[Tensor]:
        """B C h w -> B D 2h 2w, B D h w, B D h/2 w/2 (rounded up)."""
        return [level(maps) for level in self.levels]
