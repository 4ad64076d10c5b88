"""An MLP with a depth-wise convolution in its hidden layer: Mix-FFN."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.layers.conv import depthwise
from vitrail.layers.dropout import Dropout
from vitrail.layers.mlp import MLPConfig, activate
from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens


@dataclass(frozen=True, kw_only=True)
class ConvMLPConfig(MLPConfig, kind="conv_mlp"):
    """Linear, 3 x 3 depth-wise convolution, GELU, linear (PVT v2, arXiv:2106.13797; SegFormer, arXiv:2105.15203).

    `rectified` adds a ReLU before the convolution, as PVT v2 does with its linear attention.
    """

    ratio: Positive = 4.0
    hidden: Count | None = None
    rectified: bool = False

    def build(self, dim: int, *, norm: NormConfig, dropout: float = 0.0) -> nn.Module:
        """The layer: B P+N D and their grid -> B P+N D."""
        return ConvMLP(dim, self, dropout=dropout)


class ConvMLP(nn.Module):
    """B P+N D -> B P+N D; zero padding encodes positions; prefix tokens skip the convolution."""

    def __init__(self, dim: int, config: ConvMLPConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = config.hidden or max(int(dim * config.ratio), 1)
        self.rectified = config.rectified
        self.fc1 = nn.Linear(dim, hidden)
        self.conv = depthwise(hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = Dropout(dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        hidden = self.fc1(tokens)
        hidden = F.relu(hidden) if self.rectified else hidden
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        patches = to_tokens(self.conv(to_map(hidden[:, num_prefix:], grid)))  # B N E
        hidden = torch.cat([hidden[:, :num_prefix], patches], dim=1) if num_prefix else patches
        return self.drop(self.fc2(self.drop(activate(hidden, "gelu"))))
