"""Window attention: patches attend within windows, shifted by half in every second block (arXiv:2103.14030)."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers import kernels
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, resample
from vitrail.layers.relative import relative_index

Padding = Literal["masked", "before_shift", "after_shift"]


@dataclass(frozen=True, kw_only=True)
class WindowConfig(AttentionConfig, kind="window"):
    """Softmax attention within windows of `size`; with `shift`, odd blocks shift them by half a window.

    A bias depends on the offset of two patches: from a table (Swin), or computed from the logarithm of the offset by a
    small network (Swin v2, arXiv:2111.09883). `cosine`: cosine similarity with a learned scale (v2). `bias` "qv": keys
    have no bias. A grid that is not divisible by the window is padded with zeros. `padding` "masked" masks them; the
    other modes do not, as in published models: "before_shift" in those of the authors and Hugging Face, "after_shift"
    in those of timm, where patches at opposite edges of the image can attend to each other.

    `trained` is the window size in which a computed bias was trained, if it differs from `size`: offsets are relative
    to it, so that two patches have the same bias in windows of any size.
    """

    ordered = True
    size: tuple[Count, Count] = (7, 7)
    shift: bool = True
    relative: Literal["table", "continuous"] = "table"
    cosine: bool = False
    bias: Literal["qkv", "qv", "none"] = "qkv"
    padding: Padding = "masked"
    trained: tuple[Count, Count] | None = None

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return WindowAttention(self, site)


class Windows(NamedTuple):
    """How a grid is cut into windows: W of them, of w = p x q patches each."""

    grid: Grid
    size: Grid
    shift: Grid
    padding: Padding

    @property
    def tiles(self) -> Grid:
        """Rows and columns of windows."""
        return -(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1])

    @property
    def padded(self) -> Grid:
        """The grid that the windows fill."""
        return self.tiles[0] * self.size[0], self.tiles[1] * self.size[1]

    def cut(self, patches: Tensor) -> Tensor:
        """B N D -> B W*w D, window by window."""
        (h, w), (full_h, full_w) = self.grid, self.padded
        maps = patches.unflatten(1, self.grid)  # B h w D
        if self.padding == "after_shift":
            maps = self._rolled(maps, -1)
        if self.grid != self.padded:
            maps = F.pad(maps, (0, 0, 0, full_w - w, 0, full_h - h))
        if self.padding != "after_shift":
            maps = self._rolled(maps, -1)
        return self._windows(maps)

    def joined(self, cut: Tensor) -> Tensor:
        """B W*w D -> B N D, the inverse of `cut`."""
        maps = cut.unflatten(1, (*self.tiles, *self.size)).transpose(2, 3)  # B rows p columns q D
        maps = maps.flatten(3, 4).flatten(1, 2)  # B h' w' D
        if self.padding != "after_shift":
            maps = self._rolled(maps, 1)
        if self.grid != self.padded:
            maps = maps[:, : self.grid[0], : self.grid[1]]
        if self.padding == "after_shift":
            maps = self._rolled(maps, 1)
        return maps.flatten(1, 2)

    def regions(self, device: torch.device) -> Tensor | None:
        """A region number for each position, W w: only positions of the same region attend; None if all do.

        A shifted window at the edge holds patches from both sides of the map; padding is a region too.
        """
        masks = self.padding == "masked" and self.grid != self.padded
        if self.shift == (0, 0) and not masks:
            return None
        y, x = (
            (torch.arange(length, device=device) >= length - shift).long()
            for length, shift in zip(self.padded, self.shift, strict=True)
        )
        sides = self._windows((2 * y[:, None] + x)[None, ..., None]).flatten()  # W*w
        if masks:
            sides = torch.where(self.real(device), sides, 4)
        return sides.unflatten(0, (-1, self.size[0] * self.size[1]))

    def real(self, device: torch.device) -> Tensor:
        """Whether each position is a patch, not padding: W*w."""
        return self.cut(torch.ones(1, self.grid[0] * self.grid[1], 1, device=device)).flatten() > 0

    def _windows(self, maps: Tensor) -> Tensor:
        cut = maps.unflatten(2, (self.tiles[1], self.size[1])).unflatten(1, (self.tiles[0], self.size[0]))
        return cut.transpose(2, 3).flatten(1, 4)  # B rows p columns q D -> B W*w D

    def _rolled(self, maps: Tensor, sign: int) -> Tensor:
        if self.shift == (0, 0):
            return maps
        return maps.roll((sign * self.shift[0], sign * self.shift[1]), (1, 2))


class WindowAttention(MultiHead):
    """Patches attend to their window and to the prefix, prefix tokens to all: B P+N D -> B P+N D.

    A window is never larger than the grid; one that covers a whole side is not shifted along it.
    """

    def __init__(self, config: WindowConfig, site: Site) -> None:
        super().__init__(site, bias=config.bias == "qkv")
        self.size, self.padding = config.size, config.padding
        self.shifts = config.shift and site.block % 2 == 1
        self.qv_bias = nn.Parameter(torch.zeros(2, site.dim)) if config.bias == "qv" else None
        self.log_scale = nn.Parameter(torch.full((site.num_heads,), math.log(10))) if config.cosine else None
        self.scale = 1.0 if config.cosine else self.head_dim**-0.5
        self.relative: nn.Module = (
            TableBias(site.num_heads, size=config.size, grid=site.grid)
            if config.relative == "table"
            else ContinuousBias(site.num_heads, trained=config.trained)
        )

    def windows(self, grid: Grid) -> Windows:
        """How this layer cuts a grid."""
        size = fitting(self.size, grid)
        shift = tuple(
            part // 2 if self.shifts and part < length else 0 for part, length in zip(size, grid, strict=True)
        )
        return Windows(grid, size, (shift[0], shift[1]), self.padding)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        windows, num_prefix = self.windows(grid), tokens.shape[1] - grid[0] * grid[1]
        if num_prefix == 0 and self._has_kernel(tokens, windows):
            return self.drop(self.projection(self._with_kernel(tokens, windows)))
        prefix, patches = tokens[:, :num_prefix], windows.cut(tokens[:, num_prefix:])
        q, k, v = self._placed(torch.cat([prefix, patches], dim=1) if num_prefix else patches)  # B A P+Ww d
        mixed = windows.joined(self._within(q, k, v, windows, num_prefix))  # B N D
        if num_prefix:
            seen = windows.real(q.device) if windows.grid != windows.padded else None
            seen = None if seen is None else F.pad(seen, (num_prefix, 0), value=True)[None]  # 1 P+Ww
            above = F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v, attn_mask=seen, scale=self.scale)
            mixed = torch.cat([above.transpose(1, 2).flatten(2), mixed], dim=1)  # B A P d -> B P D
        return self.drop(self.projection(mixed))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N, zero outside of the window; rows sum to less than 1 if padding is not masked."""
        windows, count = self.windows(grid), tokens.shape[1]
        q, k, _ = self._placed(tokens)
        rows = torch.arange(count, device=tokens.device) if rows is None else rows
        spread = self._spread(rows, windows, count - grid[0] * grid[1]).to(q.dtype)  # A R P+N+M, M places of padding
        if windows.grid != windows.padded:
            nothing = self._placed(torch.zeros_like(tokens[:1, :1]))[1]  # 1 A 1 d
            k = torch.cat([k, nothing.expand(k.shape[0], -1, spread.shape[-1] - count, -1)], dim=2)
        logits = (q[:, :, rows] * self.scale) @ k.transpose(-2, -1)  # B A R P+N+M
        return (logits + spread).softmax(dim=-1)[..., :count]

    def projected(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values, concatenated: B P+N D -> B P+N 3D."""
        if self.qv_bias is None:
            return self.qkv(tokens)
        q_bias, v_bias = self.qv_bias
        return self.qkv(tokens) + torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])

    def _placed(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each; with `cosine`, normalised and times the learned scale."""
        q, k, v = self.heads(tokens)
        if self.log_scale is None:
            return q, k, v
        # At most 100: a sharper softmax would not train.
        scale = self.log_scale.clamp(max=math.log(100)).exp()[:, None, None]  # A 1 1
        return (F.normalize(q, dim=-1) * scale).to(v.dtype), F.normalize(k, dim=-1).to(v.dtype), v

    def _has_kernel(self, tokens: Tensor, windows: Windows) -> bool:
        """Whether the Triton kernel can be used: small windows without padding, no cosine similarity."""
        fits = self.log_scale is None and self.head_dim in kernels.WIDTHS and kernels.suits(tokens)
        return fits and windows.grid == windows.padded and windows.size[0] * windows.size[1] <= 64

    def _with_kernel(self, tokens: Tensor, windows: Windows) -> Tensor:
        """The outputs of the heads, concatenated: B N D -> B N D."""
        bias = self.relative(windows.size).float()  # A w w
        grid, size, shift, _ = windows
        return kernels.window_attention(
            self.projected(tokens), bias, num_heads=self.num_heads, grid=grid, size=size, shift=shift, scale=self.scale
        )

    def _within(self, q: Tensor, k: Tensor, v: Tensor, windows: Windows, num_prefix: int) -> Tensor:
        """The patches' part: B A P+Ww d each -> B W*w D."""
        count, place = windows.tiles[0] * windows.tiles[1], windows.size[0] * windows.size[1]
        bias = self.relative(windows.size)[None]  # 1 A w w
        if (regions := windows.regions(q.device)) is not None:
            same = regions[:, :, None] == regions[:, None]  # W w w
            bias = torch.where(same[:, None], bias, -math.inf).repeat(q.shape[0], 1, 1, 1)  # BW A w w
        bias = F.pad(bias, (num_prefix, 0)).to(q.dtype)
        # Windows as a part of the batch: a view, and the fastest layout for the fused kernels.
        q, *kv = (part[:, :, num_prefix:].unflatten(2, (-1, place)).transpose(1, 2) for part in (q, k, v))  # B W A w d
        if num_prefix:
            above = (part[:, None, :, :num_prefix].expand(-1, count, -1, -1, -1) for part in (k, v))  # B W A P d
            kv = [torch.cat([one, part], dim=3) for one, part in zip(above, kv, strict=True)]
        q, k, v = (part.flatten(0, 1) for part in (q, *kv))  # BW A P+w d
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        return mixed.transpose(1, 2).flatten(2).unflatten(0, (-1, count)).flatten(1, 2)  # BW A w d -> B W*w D

    def _spread(self, rows: Tensor, windows: Windows, num_prefix: int) -> Tensor:
        """The bias of some queries and all keys in the order of the grid, then padding: A R P+N+M."""
        count, place = windows.grid[0] * windows.grid[1], windows.size[0] * windows.size[1]
        patch = windows.cut(torch.arange(1, count + 1, device=rows.device)[None, :, None]).flatten()  # W*w, 0: padding
        where = torch.argsort(patch).roll(count)  # N+M: the position of each patch, then those of padding
        group = where // place * 5
        if (regions := windows.regions(rows.device)) is not None:
            group = group + regions.flatten()[where]
        slot = F.pad(where % place, (num_prefix, 0))  # P+N+M
        group = F.pad(group, (num_prefix, 0), value=-1)
        both = (group[rows, None] >= 0) & (group >= 0)  # R P+N+M: both are patches
        bias = self.relative(windows.size)[:, slot[rows, None], slot].masked_fill(~both, 0.0)
        hidden = both & (group[rows, None] != group)
        hidden[:, num_prefix + count :] |= ~both[:, num_prefix + count :]  # prefix tokens do not attend to padding
        return bias.masked_fill(hidden, -math.inf)


class TableBias(Gridded):
    """A bias A w w for windows of p x q patches, from a learned table of (2p-1)(2q-1) offsets."""

    index: Tensor

    def __init__(self, num_heads: int, *, size: Grid, grid: Grid) -> None:
        super().__init__(grid)
        self.size, self.window = size, fitting(size, grid)
        self.table = nn.Parameter(torch.zeros((2 * self.window[0] - 1) * (2 * self.window[1] - 1), num_heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.register_buffer("index", relative_index(self.window, 0), persistent=False)

    def forward(self, window: Grid) -> Tensor:
        """The bias for windows of a size: A w w."""
        if window == self.window:
            return self.table[self.index].permute(2, 0, 1)  # w w A -> A w w
        return self._table_at(window)[relative_index(window, 0).to(self.index.device)].permute(2, 0, 1)

    def _table_at(self, window: Grid) -> Tensor:
        old, new = ((2 * p - 1, 2 * q - 1) for p, q in (self.window, window))
        return resample(self.table, old, new)

    def resize(self, grid: Grid) -> None:
        """Resamples the table in place if the window size changes on the new grid."""
        self.grid, window = grid, fitting(self.size, grid)
        if window != self.window:
            table = self._table_at(window).detach().clone()
            self.table, self.window = nn.Parameter(table, requires_grad=self.table.requires_grad), window
            self.reset_tables(table)

    def resized(self, grid: Grid) -> bool:
        """Resizes to a grid; returns whether the window size has changed."""
        before = self.window
        super().resized(grid)
        return self.window != before

    def reset_tables(self, like: Tensor) -> None:
        """Recomputes the index, on the device of `like`."""
        self.index = relative_index(self.window, 0).to(like.device)


class ContinuousBias(nn.Module):
    """A bias A w w, computed from the logarithms of offsets, for windows of any size (Swin v2, arXiv:2111.09883)."""

    def __init__(self, num_heads: int, *, trained: Grid | None = None, hidden: int = 512) -> None:
        super().__init__()
        self.trained = trained
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, num_heads, bias=False)

    def forward(self, window: Grid) -> Tensor:
        """The bias for windows of a size: A w w."""
        offsets = log_offsets(window, trained=self.trained or window).to(self.fc1.weight)
        table = self.fc2(F.relu(self.fc1(offsets)))  # (2p-1)(2q-1) A
        bias = 16 * table.sigmoid()  # bounded, for the softmax
        return bias[relative_index(window, 0).to(table.device)].permute(2, 0, 1)  # w w A -> A w w


def fitting(size: Grid, grid: Grid) -> Grid:
    """The window size, limited to the grid."""
    return min(size[0], grid[0]), min(size[1], grid[1])


def log_offsets(window: Grid, *, trained: Grid) -> Tensor:
    """The signed logarithms of the offsets (dy, dx) of two patches of a window: (2p-1)(2q-1) 2.

    Offsets are scaled so that the largest one in the trained window is 8.
    """
    axes = [
        torch.arange(1 - length, length).float() / max(unit - 1, 1)
        for length, unit in zip(window, trained, strict=True)
    ]
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1) * 8
    return offsets.sign() * (offsets.abs() + 1).log2() / 3
