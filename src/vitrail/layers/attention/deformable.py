"""Deformable attention: all queries share keys that are read at learned places of the map (DAT, arXiv:2201.00520)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.attention.by_rows import RowBias, attend_by_rows
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, resample
from vitrail.layers.stage import OnTokens, to_map, to_tokens

FAR = 9.0  # a place outside of any map, whose middles lie from -1 to 1


@dataclass(frozen=True, kw_only=True)
class DeformableConfig(AttentionConfig, kind="deformable"):
    """Keys and values are read between the patches, around a regular grid of one point for `stride` x `stride` of them.

    A small network over the queries moves the points, each of the `groups` of heads its own, by up to `reach` / 2
    steps of that grid. `relative` adds a bias that is read, between its entries too, from a table of offsets.
    """

    ordered = True
    groups: Count = 1
    stride: Count = 1
    kernel: Count = 3
    reach: Positive = 2.0
    relative: bool = True
    dropout: Rate = 0.0

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return DeformableAttention(self, site)


class DeformableAttention(MultiHead):
    """All tokens attend to the prefix and to the same M points of the map: B P+N D -> B P+N D.

    Places count from -1 to 1 over the map, (y, x). Prefix tokens stand nowhere on it, so they have no bias.
    """

    maps = ("q", "kv")
    q: nn.Linear
    kv: nn.Linear

    def __init__(self, config: DeformableConfig, site: Site) -> None:
        super().__init__(site)
        if site.num_heads % config.groups:
            raise ConfigError(f"{site.num_heads} heads do not divide into {config.groups} groups that share offsets")
        if config.kernel % 2 == 0:
            raise ConfigError(
                f"the kernel of deformable attention is {config.kernel}; it must be odd, to have a middle"
            )
        self.groups, self.reach, self.dropout = config.groups, config.reach, config.dropout
        width = site.dim // config.groups
        self.offsets = nn.Sequential(
            nn.Conv2d(width, width, config.kernel, config.stride, config.kernel // 2, groups=width),
            OnTokens(site.norm.build(width)),
            nn.GELU(),
            nn.Conv2d(width, 2, 1, bias=False),
        )
        self.relative = SampledBias(site.num_heads, grid=site.grid) if config.relative else None

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v, points = self._read(tokens, grid)
        dropout = self.dropout if self.training else 0.0
        if self.relative is None:
            return self.joined(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout))
        # Where prefix tokens stand, far outside, the table says nothing.
        bias = self.relative.by_rows(F.pad(points, (0, 0, k.shape[2] - points.shape[2], 0), value=FAR), grid)
        return self.joined(attend_by_rows(q, k, v, bias, grid, scale=self.head_dim**-0.5, dropout=dropout))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N: what a point gets is shared by the four patches around it, as they share in its value.

        Beyond the edge there is nothing to read; what a point there gets is shown on the edge.
        """
        q, k, _, points = self._read(tokens, grid)
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        logits = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)  # B A P+N P+M
        if self.relative is not None:
            logits = logits + F.pad(self.relative(points, grid), (num_prefix, 0, num_prefix, 0)).to(q.dtype)
        found = (logits if rows is None else logits[:, :, rows]).softmax(dim=-1)
        shares = bilinear(points, grid).to(found).repeat_interleave(self.num_heads // self.groups, dim=1)  # B A M N
        return torch.cat([found[..., :num_prefix], found[..., num_prefix:] @ shares], dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values of the patches, which points between them share as `weights` does: B P+N D -> B A P+N d."""
        return self.split(self.kv(tokens).chunk(2, dim=-1)[1])

    def points(self, q: Tensor, grid: Grid) -> Tensor:
        """Where each group reads, from the queries of the patches B N D: B G M 2, in float32 at least."""
        maps = to_map(q, grid).unflatten(1, (self.groups, -1)).flatten(0, 1)  # B D h w -> BG D/G h w
        moves = self.offsets(maps)  # BG 2 h' w'
        rows, columns = moves.shape[2:]
        moves = to_tokens(moves).to(torch.promote_types(moves.dtype, torch.float32)).tanh()  # BG M 2
        steps = moves.new_tensor([self.reach / rows, self.reach / columns])
        return (centres((rows, columns), moves) + moves * steps).unflatten(0, (-1, self.groups))

    def _read(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries B A P+N d, keys and values B A P+M d, and the points B G M 2."""
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        q = self.q(tokens)
        points = self.points(q[:, num_prefix:], grid)
        maps = to_map(tokens[:, num_prefix:], grid).unflatten(1, (self.groups, -1)).flatten(0, 1)  # BG D/G h w
        read = sample(maps, *points.flatten(0, 1)[:, None].unbind(-1))[:, :, 0]  # BG D/G M
        read = read.unflatten(0, (-1, self.groups)).flatten(1, 2).transpose(1, 2)  # B M D
        k, v = self.kv(torch.cat([tokens[:, :num_prefix], read], dim=1)).chunk(2, dim=-1)  # B P+M D
        return self.split(q), self.split(k), self.split(v), points


class SampledBias(Gridded):
    """A table A 2h-1 2w-1 of offsets, read bilinearly wherever a query and a point are apart: B G M 2 -> B A N M."""

    def __init__(self, num_heads: int, *, grid: Grid) -> None:
        super().__init__(grid)
        self.table = nn.Parameter(torch.zeros(num_heads, 2 * grid[0] - 1, 2 * grid[1] - 1))
        nn.init.trunc_normal_(self.table, std=0.01)

    def _table_at(self, grid: Grid) -> Tensor:
        old, new = ((2 * h - 1, 2 * w - 1) for h, w in (self.grid, grid))
        return self.table if old == new else to_map(resample(self.table.flatten(1).T, old, new)[None], new)[0]

    def resize(self, grid: Grid) -> None:
        """Resamples the table in place."""
        self.table = nn.Parameter(self._table_at(grid).detach().clone(), requires_grad=self.table.requires_grad)
        self.grid = grid

    def forward(self, points: Tensor, grid: Grid) -> Tensor:
        """The bias of every patch of a grid and every point: B G M 2 -> B A N M."""
        return self.by_rows(points, grid)(0, grid[0]).unflatten(2, (-1, grid[0])).transpose(2, 3).flatten(2, 3)

    def by_rows(self, points: Tensor, grid: Grid) -> RowBias:
        """The bias of some rows of patches and every point: B G M 2 -> B A wR M."""
        batch, groups = points.shape[:2]
        table = self._table_at(grid).unflatten(0, (groups, -1)).expand(batch, -1, -1, -1, -1)  # B G A/G 2h-1 2w-1
        down, right = (  # BG h M and BG w M, from -1 to 1
            (middles(count, points)[:, None] - points[..., None, :, axis].flatten(0, 1)) / 2
            for axis, count in enumerate(grid)
        )

        def read(first: int, last: int) -> Tensor:
            found = sample(table.flatten(0, 1), down[:, None, first:last], right[:, :, None])  # BG A/G wR M
            return found.unflatten(0, (-1, groups)).flatten(1, 2)

        return read


def middles(count: int, like: Tensor) -> Tensor:
    """The middles of equal parts of the way from -1 to 1."""
    return ((torch.arange(count, device=like.device).to(like.dtype) + 0.5) / count) * 2 - 1


def centres(grid: Grid, like: Tensor) -> Tensor:
    """The middles of the cells of a grid, (y, x) from -1 to 1: N 2."""
    y, x = (middles(count, like) for count in grid)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)


def sample(maps: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Reads maps B C h w between their pixels; y and x spread to B R M or B r s M -> B C R M; nothing is outside.

    -1 and 1 are the middles of the outermost pixels, as in the authors' code. Places are exact to float32 whatever the
    type of the maps: bfloat16 would shift them by a fifth of a pixel in a map of 56.
    """
    # All x, then all y: on CPUs the kernel reads them faster than pairs.
    places = torch.stack(torch.broadcast_tensors(x, y)).flatten(2, -2).movedim(0, -1)  # B R M 2
    return F.grid_sample(maps.to(places.dtype), places, align_corners=True).to(maps.dtype)


def bilinear(points: Tensor, grid: Grid) -> Tensor:
    """Which share each patch has in what is read at points (y, x), moved onto the map: ... M 2 -> ... M N."""
    shares = []
    for axis, count in enumerate(grid):
        shares.append(tents((points[..., axis].clamp(-1, 1) + 1) / 2 * (count - 1), count))
    return (shares[0][..., :, None] * shares[1][..., None, :]).flatten(-2)


def tents(places: Tensor, count: int) -> Tensor:
    """Which share each of a line of pixels has in what is read between them, at places in pixels: ... -> ... count."""
    pixels = torch.arange(count, device=places.device).to(places.dtype)
    return (1 - (places[..., None] - pixels).abs()).clamp(min=0)
