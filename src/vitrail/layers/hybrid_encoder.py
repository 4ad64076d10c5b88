"""The encoder of RT-DETR (arXiv:2304.08069): attention on the coarsest level, convolutions between the levels."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.conv import ConvNorm
from vitrail.layers.detr import EncoderLayer
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens

_BLOCKS = 3  # convolutions of two branches in a layer


class RepBlock(nn.Module):
    """A 3 x 3 and a 1 x 1 convolution side by side (RepVGG, arXiv:2101.03697): B D h w -> B D h w."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wide, self.narrow = ConvNorm(dim, dim, 3), ConvNorm(dim, dim, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return F.silu(self.wide(maps) + self.narrow(maps))


class CspLayer(nn.Module):
    """Two maps joined: one branch of blocks, and one that passes by (arXiv:1911.11929): B 2D h w -> B D h w."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.enter, self.skip = (ConvNorm(2 * dim, hidden, 1, activation=nn.SiLU()) for _ in range(2))
        self.blocks = nn.Sequential(*(RepBlock(hidden) for _ in range(_BLOCKS)))
        self.leave = nn.Identity() if hidden == dim else ConvNorm(hidden, dim, 1, activation=nn.SiLU())

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """B D h w, B D h w -> B D h w."""
        both = torch.cat([first, second], dim=1)
        return self.leave(self.blocks(self.enter(both)) + self.skip(both))


class HybridEncoder(nn.Module):
    """Levels B D h w, fine to coarse -> the same shapes: attention within the coarsest, then down and up again."""

    def __init__(
        self, dim: int, *, levels: int, depth: int, num_heads: int, hidden: int, expansion: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        layer = {"num_heads": num_heads, "hidden": hidden, "dropout": dropout}
        self.attention = nn.ModuleList(EncoderLayer(dim, **layer, activation=nn.GELU()) for _ in range(depth))  # type: ignore[arg-type]
        inner = int(dim * expansion)
        self.laterals = nn.ModuleList(ConvNorm(dim, dim, 1, activation=nn.SiLU()) for _ in range(levels - 1))
        self.down = nn.ModuleList(CspLayer(dim, inner) for _ in range(levels - 1))
        self.strides = nn.ModuleList(ConvNorm(dim, dim, 3, stride=2, activation=nn.SiLU()) for _ in range(levels - 1))
        self.up = nn.ModuleList(CspLayer(dim, inner) for _ in range(levels - 1))

    def forward(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """B D h w each -> B D h w each."""
        *finer, last = levels
        grid: Grid = (last.shape[2], last.shape[3])
        tokens = to_tokens(last)
        positions = counted_position(grid, tokens.shape[2], like=tokens)
        for layer in self.attention:
            tokens = layer(tokens, positions)
        found = [to_map(tokens, grid)]
        for lateral, fuse, level in zip(self.laterals, self.down, reversed(finer), strict=True):
            found[0] = lateral(found[0])
            grown = F.interpolate(found[0], size=level.shape[2:], mode="nearest")
            found.insert(0, fuse(grown, level))
        rising = [found[0]]
        for stride, fuse, level in zip(self.strides, self.up, found[1:], strict=True):
            rising.append(fuse(stride(rising[-1]), level))
        return rising


def counted_position(grid: Grid, dim: int, *, like: Tensor) -> Tensor:
    """Rows and columns, counted from 0, as sines and cosines: N D."""
    omega = 10000.0 ** -(torch.arange(dim // 4, device=like.device, dtype=like.dtype) / (dim // 4))
    rows, columns = (torch.arange(count, device=like.device, dtype=like.dtype)[:, None] * omega for count in grid)
    height, width = grid
    parts = [part[:, None].expand(-1, width, -1) for part in (rows.sin(), rows.cos())]
    parts += [part[None].expand(height, -1, -1) for part in (columns.sin(), columns.cos())]
    return torch.cat(parts, dim=2).flatten(0, 1)
