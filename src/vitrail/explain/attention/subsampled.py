"""LeViT's attention between stages, which halves the grid, as attention between all patches of the finer grid."""

import torch
from torch import Tensor, nn

from vitrail.explain.attention.cells import cell_of_patch
from vitrail.layers.attention import Attention, SubsampledAttention
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens


class Subsampled(Attention):
    """Every other row and column is a query, and its result becomes one token for its 2 x 2 patches.

    Each patch gets the row of the query of its 2 x 2 patches. So propagating importance down is exact: a coarse token
    divides evenly among its patches, whose rows add up to its own row again.
    """

    def __init__(self, inner: SubsampledAttention) -> None:
        super().__init__()
        self.inner, self.num_heads = inner, inner.num_heads

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The result of each patch's query: B N C -> B N D."""
        return to_tokens(self.inner(to_map(tokens, grid)))[:, self.query_of_patch(grid)]

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R N: the attention of the queries of the patches `rows`."""
        queries = self.query_of_patch(grid, rows).to(tokens.device)
        q = self._split(self.inner.q(tokens[:, self.query_patches(grid).to(tokens.device)]))[:, :, queries]  # B A R d
        k = self._split(self.inner.kv(tokens))[..., : self.inner.head_dim]
        bias = self.inner.bias(grid)[:, queries]  # A R N
        return (q @ k.transpose(-2, -1) * self.inner.head_dim**-0.5 + bias).softmax(dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B N C -> B A N v."""
        return self._split(self.inner.kv(tokens))[..., self.inner.head_dim :]

    def query_patches(self, grid: Grid) -> Tensor:
        """The patches that are queries: Q of N."""
        return torch.arange(grid[0] * grid[1]).view(grid)[::2, ::2].flatten()

    def query_of_patch(self, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """The query of each of the patches `rows`: R."""
        queries = cell_of_patch(grid, 2)
        return queries if rows is None else queries[rows.cpu()]

    @property
    def readout(self) -> nn.Module:
        """The module that reads the mixed values: the activation."""
        return self.inner.activation

    def _split(self, part: Tensor) -> Tensor:
        return part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
