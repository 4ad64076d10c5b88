"""Token mixers without attention: pooling and separable convolution."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.mlp import StarReLU
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens


def pool_difference(maps: Tensor, size: int = 3) -> Tensor:
    """The mean of each cell's neighbourhood minus the cell: B D h w -> B D h w (Yu et al. 2021, arXiv:2111.11418)."""
    return F.avg_pool2d(maps, size, stride=1, padding=size // 2, count_include_pad=False) - maps


class PoolMixer(nn.Module):
    """`pool_difference` for tokens: B N D -> B N D."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        return to_tokens(pool_difference(to_map(tokens, grid)))


class SepConvMixer(nn.Module):
    """Expand, depth-wise convolution, project: B N D -> B N D (separable convolution, as in arXiv:2210.13452)."""

    def __init__(self, dim: int, *, ratio: float = 2.0, kernel: int = 7) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.expand = nn.Linear(dim, hidden, bias=False)
        self.activation = StarReLU()
        self.filter = nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False)
        self.project = nn.Linear(hidden, dim, bias=False)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        maps = to_map(self.activation(self.expand(tokens)), grid)
        return self.project(to_tokens(self.filter(maps)))
