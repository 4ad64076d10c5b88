"""PiT: a ViT with pooling between stages, which keeps its class token (Heo et al. 2021, arXiv:2103.16302)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.config import Count, Rate
from vitrail.layers.attention import AttentionConfig, Site, SoftmaxConfig
from vitrail.layers.block import Block
from vitrail.layers.conv import coarsened
from vitrail.layers.downsample import PatchStem
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig
from vitrail.layers.pool import ClassPool
from vitrail.layers.position import AddedPosition, resample
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import State, TokenStage, to_tokens
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class PiTConfig(StagedConfig):
    """Widths, blocks and heads of each stage; without a class token the patches are mean-pooled."""

    num_heads: tuple[Count, ...]
    patch: PatchConfig = LinearPatchConfig(size=(16, 16), stride=(8, 8))
    class_token: bool = True
    attention: AttentionConfig = SoftmaxConfig()
    mlp: MLPConfig = GeluMLPConfig()
    norm: NormConfig = LayerNormConfig()
    dropout: Rate = 0.0

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse, or an error that names a size that fits."""
        first = self.patch.grid(image_size)
        return tuple(coarsened(first, 2**level) for level in range(len(self.depths)))


class PiT(Staged):
    """Overlapping patches with learned positions, then stages of plain blocks; all but the first pool the map."""

    config: PiTConfig

    def __init__(self, config: PiTConfig) -> None:
        super().__init__(config)
        self.stem = PatchStem(config.channels, config.dims[0], patch=config.patch)
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            self._stage(level, [next(rates) for _ in range(depth)]) for level, depth in enumerate(config.depths)
        )
        self.norm = config.norm.build(config.dims[-1])
        if config.class_token:
            self.pool = ClassPool()
        self.head = self.new_head()

    def _stage(self, level: int, rates: list[float]) -> TokenStage:
        config, dim = self.config, self.config.dims[level]
        grid, count = config.grids(config.image_size)[level], int(config.class_token)
        site = Site(dim, config.num_heads[level], grid, num_prefix=count, norm=config.norm, dropout=config.dropout)
        blocks = [
            Block(site._replace(block=index), attention=config.attention, mlp=config.mlp, drop_path=rate)
            for index, rate in enumerate(rates)
        ]
        if level == 0:
            prefix = PrefixTokens(dim, class_token=config.class_token)
            initialise(prefix, "trunc_normal")  # as published: all other layers keep the default of torch
            return TokenStage(blocks, prefix=prefix, position=MapPosition(dim, grid=grid))
        pool = pooling(config.dims[level - 1], dim)
        if config.class_token:
            return CarryingStage(blocks, downsample=pool, widen=nn.Linear(config.dims[level - 1], dim))
        return TokenStage(blocks, downsample=pool)


class CarryingStage(TokenStage):
    """A stage that keeps the prefix tokens of the previous stage, mapped from B P C to B P D."""

    def __init__(self, blocks: list[Block], *, downsample: nn.Module, widen: nn.Linear) -> None:
        super().__init__(blocks, downsample=downsample)
        self.widen = widen

    def receive(self, maps: Tensor, prefix: Tensor) -> State:
        """The map B C H W and the prefix B P C of the previous stage -> the tokens B P+N D of the first block."""
        patches, grid = self.enter(maps)
        return State(torch.cat([self.widen(prefix), patches], dim=1), grid)


class MapPosition(AddedPosition):
    """A learned map D h w that is added to the patches, not to the prefix."""

    def __init__(self, dim: int, *, grid: Grid) -> None:
        super().__init__(grid)
        self.table = nn.Parameter(torch.zeros(dim, *grid))
        nn.init.trunc_normal_(self.table, std=0.02)

    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: N D."""
        return resample(to_tokens(self.table[None])[0], self.grid, grid)

    def resize(self, grid: Grid) -> None:
        """Resamples the map in place."""
        table = self.at(grid).detach().unflatten(0, grid).permute(2, 0, 1).contiguous()  # N D -> D h w
        self.table, self.grid = nn.Parameter(table, requires_grad=self.table.requires_grad), grid


def pooling(channels: int, dim: int) -> nn.Conv2d:
    """A grouped convolution with stride 2, one group per input channel: B C H W -> B D H/2 W/2."""
    return nn.Conv2d(channels, dim, 3, stride=2, padding=1, groups=math.gcd(channels, dim))


def _size(name: str, heads: int, head_dim: int, depths: tuple[int, ...] = (2, 6, 4), patch: int = 16) -> Preset:
    num_heads = (heads, 2 * heads, 4 * heads)
    return Preset(
        PiTConfig(
            dims=tuple(count * head_dim for count in num_heads),
            depths=depths,
            num_heads=num_heads,
            patch=LinearPatchConfig(size=(patch, patch), stride=(patch // 2, patch // 2)),
        ),
        weights=f"timm pit_{name}_224.in1k",
    )


PIT = Family(
    name="pit",
    config=PiTConfig,
    module=PiT,
    paper="arXiv:2103.16302",
    idea="A plain ViT that halves its grid and widens its tokens twice, as CNNs do. The class token is kept, with a "
    "linear map of its own.",
    use="A ViT with a feature pyramid and fewer operations, for a fixed image size.",
    presets={
        "pit_ti": _size("ti", 2, 32),
        "pit_xs": _size("xs", 2, 48),
        "pit_s": _size("s", 3, 48),
        "pit_b": _size("b", 4, 64, (3, 6, 4), patch=14),
    },
)
