"""Linformer: learned linear maps reduce keys and values to a fixed number."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.errors import Unsupported
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, resample


@dataclass(frozen=True, kw_only=True)
class LinformerConfig(AttentionConfig, kind="linformer"):
    """softmax(q (E k)) (F v): E and F reduce keys and values to `length` (Wang et al. 2020, arXiv:2006.04768).

    Both are learned; `shared`: E = F. Prefix tokens are additional keys and values, unchanged.
    """

    ordered = True
    has_weights = False
    length: Count = 64
    shared: bool = False

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return LinformerAttention(self, site)


class LinformerAttention(MultiHead):
    """Every token attends to the prefix and to `length` mixtures of patches: B P+N D -> B P+N D."""

    def __init__(self, config: LinformerConfig, site: Site) -> None:
        super().__init__(site)
        self.keys = Mixture(config.length, grid=site.grid)
        self.values = None if config.shared else Mixture(config.length, grid=site.grid)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self.heads(tokens)
        values = self.keys if self.values is None else self.values
        return self.joined(F.scaled_dot_product_attention(q, self.keys(k, grid), values(v, grid)))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """Raises Unsupported: there is no such matrix."""
        raise Unsupported(
            "LinformerAttention attends to learned mixtures of patches with weights that may be negative, not to "
            "single tokens; use another attention mechanism to read a matrix of weights"
        )


class Mixture(Gridded):
    """A learned map over the patches of a grid, the same for all heads: B A P+N d -> B A P+length d."""

    def __init__(self, length: int, *, grid: Grid) -> None:
        super().__init__(grid)
        count = grid[0] * grid[1]
        # With this scale, the sum of N independent vectors is as large as one of them.
        self.table = nn.Parameter(torch.randn(count, length) * count**-0.5)

    def at(self, grid: Grid) -> Tensor:
        """The map for a grid, N length; rescaled by the number of patches, so that sums stay the same."""
        share = self.grid[0] * self.grid[1] / (grid[0] * grid[1])
        return self.table if grid == self.grid else resample(self.table, self.grid, grid) * share

    def resize(self, grid: Grid) -> None:
        """Resamples the map in place."""
        self.table = nn.Parameter(self.at(grid).detach().clone(), requires_grad=self.table.requires_grad)
        self.grid = grid

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B A P+N d -> B A P+length d."""
        num_prefix = tokens.shape[2] - grid[0] * grid[1]
        mixed = self.at(grid).transpose(0, 1) @ tokens[:, :, num_prefix:]  # length N @ B A N d
        return torch.cat([tokens[:, :, :num_prefix].to(mixed.dtype), mixed], dim=2)
