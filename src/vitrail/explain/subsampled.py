"""The attention that halves LeViT's map between stages, read as one between all patches of the finer map."""

import torch
from torch import Tensor, nn

from vitrail.explain.page_encode import group
from vitrail.layers.attention import Attention, SubsampledAttention
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens


class Subsampled(Attention):
    """Every other row and column asks, and what it hears becomes one token for its 2 x 2 patches.

    So each patch has the row of the query that stands for it. Carrying importance down is exact by that: a coarse
    token shares evenly among its patches, whose rows add up to its own again.
    """

    def __init__(self, inner: SubsampledAttention) -> None:
        super().__init__()
        self.inner, self.num_heads = inner, inner.num_heads

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """What becomes of each patch's query: B N C -> B N D."""
        return to_tokens(self.inner(to_map(tokens, grid)))[:, self.queries(grid)]

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R N: the attention of the queries that stand for the patches `rows`."""
        queries = self.queries(grid, rows).to(tokens.device)
        q = self._split(self.inner.q(tokens[:, self.asking(grid).to(tokens.device)]))[:, :, queries]  # B A R d
        k = self._split(self.inner.kv(tokens))[..., : self.inner.head_dim]
        bias = self.inner.bias(grid)[:, queries]  # A R N
        return (q @ k.transpose(-2, -1) * self.inner.head_dim**-0.5 + bias).softmax(dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B N C -> B A N v."""
        return self._split(self.inner.kv(tokens))[..., self.inner.head_dim :]

    def asking(self, grid: Grid) -> Tensor:
        """The patches that ask: Q of N."""
        return torch.arange(grid[0] * grid[1]).view(grid)[::2, ::2].flatten()

    def queries(self, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """Which query stands for each of the patches `rows`: R."""
        standing = group(grid, 2)
        return standing if rows is None else standing[rows.cpu()]

    @property
    def readout(self) -> nn.Module:
        """The module that reads what the heads mixed: the activation."""
        return self.inner.activation

    def _split(self, part: Tensor) -> Tensor:
        return part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
