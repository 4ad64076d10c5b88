"""Deformable attention: all queries share keys that are sampled at learned points of the map (arXiv:2201.00520)."""

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

FAR = 9.0  # a coordinate outside of any map; maps range from -1 to 1


@dataclass(frozen=True, kw_only=True)
class DeformableConfig(AttentionConfig, kind="deformable"):
    """Keys and values are sampled at points, initially a regular grid of one point for `stride` x `stride` patches.

    A small network moves the points by offsets computed from the queries, separately for each of `groups` groups of
    heads, by up to `reach` / 2 steps of that grid. `relative` adds a bias, interpolated from a table of offsets.
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

    Coordinates (y, x) range from -1 to 1 over the map. Prefix tokens have no coordinates, so they have no bias.
    """

    maps = ("q", "kv")
    q: nn.Linear
    kv: nn.Linear

    def __init__(self, config: DeformableConfig, site: Site) -> None:
        super().__init__(site)
        if site.num_heads % config.groups:
            raise ConfigError(f"num_heads {site.num_heads} is not divisible by groups {config.groups}")
        if config.kernel % 2 == 0:
            raise ConfigError(f"the kernel of deformable attention is {config.kernel}; it must be odd")
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
        # Prefix tokens are placed far outside, where the table gives a bias of zero.
        bias = self.relative.by_rows(F.pad(points, (0, 0, k.shape[2] - points.shape[2], 0), value=FAR), grid)
        return self.joined(attend_by_rows(q, k, v, bias, grid, scale=self.head_dim**-0.5, dropout=dropout))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N: the weight of a point is distributed over the four patches around it, as in interpolation.

        The value of a point outside of the map is zero; its weight is shown at the edge.
        """
        q, k, _, points = self._read(tokens, grid)
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        logits = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)  # B A P+N P+M
        if self.relative is not None:
            logits = logits + F.pad(self.relative(points, grid), (num_prefix, 0, num_prefix, 0)).to(q.dtype)
        weights = (logits if rows is None else logits[:, :, rows]).softmax(dim=-1)
        shares = bilinear(points, grid).to(weights).repeat_interleave(self.num_heads // self.groups, dim=1)  # B A M N
        return torch.cat([weights[..., :num_prefix], weights[..., num_prefix:] @ shares], dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values of the patches, which points interpolate: B P+N D -> B A P+N d."""
        return self.split(self.kv(tokens).chunk(2, dim=-1)[1])

    def points(self, q: Tensor, grid: Grid) -> Tensor:
        """The points of each group, from the queries of the patches B N D: B G M 2, in float32 or wider."""
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
    """A bias from a table A 2h-1 2w-1, interpolated at the offsets of queries and points: B G M 2 -> B A N M."""

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
            bias = sample(table.flatten(0, 1), down[:, None, first:last], right[:, :, None])  # BG A/G wR M
            return bias.unflatten(0, (-1, groups)).flatten(1, 2)

        return read


def middles(count: int, like: Tensor) -> Tensor:
    """The centres of `count` equal parts of the interval from -1 to 1."""
    return ((torch.arange(count, device=like.device).to(like.dtype) + 0.5) / count) * 2 - 1


def centres(grid: Grid, like: Tensor) -> Tensor:
    """The centres of the cells of a grid, (y, x) from -1 to 1: N 2."""
    y, x = (middles(count, like) for count in grid)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)


def sample(maps: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Bilinear sampling of maps B C h w; y and x broadcast to B R M or B r s M -> B C R M; zero outside.

    -1 and 1 are the centres of the outermost pixels, as in the authors' code. Coordinates are float32 whatever the
    type of the maps: in bfloat16 they would be off by a fifth of a pixel in a map of 56.
    """
    # All x, then all y in memory: faster on CPUs than pairs.
    points = torch.stack(torch.broadcast_tensors(x, y)).flatten(2, -2).movedim(0, -1)  # B R M 2
    return F.grid_sample(maps.to(points.dtype), points, align_corners=True).to(maps.dtype)


def bilinear(points: Tensor, grid: Grid) -> Tensor:
    """The interpolation weights of all patches at points (y, x), clamped to the map: ... M 2 -> ... M N."""
    shares = []
    for axis, count in enumerate(grid):
        shares.append(linear_weights((points[..., axis].clamp(-1, 1) + 1) / 2 * (count - 1), count))
    return (shares[0][..., :, None] * shares[1][..., None, :]).flatten(-2)


def linear_weights(coordinates: Tensor, count: int) -> Tensor:
    """The weights of `count` pixels in linear interpolation at coordinates in pixels: ... -> ... count."""
    pixels = torch.arange(count, device=coordinates.device).to(coordinates.dtype)
    return (1 - (coordinates[..., None] - pixels).abs()).clamp(min=0)
