"""Stages of transformer blocks: each stage embeds the map of the previous one."""

from dataclasses import dataclass

from torch import nn

from vitrail.config import Count, Positive, Rate
from vitrail.layers.attention import AttentionConfig, Site
from vitrail.layers.block import Block
from vitrail.layers.embed import ConvEmbed, Window
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import TokenStage
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(StagedConfig):
    """The options of these families; methods define the embedding and the attention of each stage.

    `embed_norm` is the norm of the patch embeddings.
    """

    num_heads: tuple[Count, ...]
    mlp_ratios: tuple[Positive, ...]
    norm: NormConfig = LayerNormConfig()
    embed_norm: NormConfig = LayerNormConfig(eps=1e-5)
    dropout: Rate = 0.0

    def windows(self) -> list[Window]:
        """The embedding of each stage."""
        raise NotImplementedError(f"{type(self).__name__}.windows")

    def attention(self, stage: int) -> AttentionConfig:
        """The attention of a stage."""
        raise NotImplementedError(f"{type(self).__name__}.attention")

    def mlp(self, stage: int) -> MLPConfig:
        """The feed-forward layer of a stage."""
        return GeluMLPConfig(ratio=self.mlp_ratios[stage])

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse."""
        grids, size = [], image_size
        for window in self.windows():
            grids.append(size := window.grid(size))
        return tuple(grids)


class Pyramid(Staged):
    """Stages of blocks, each at half the resolution; with `class_token`, the last stage has one."""

    config: PyramidConfig
    class_token = False

    def __init__(self, config: PyramidConfig) -> None:
        super().__init__(config)
        widths = (config.channels, *config.dims)
        embeds = [
            ConvEmbed(widths[stage], widths[stage + 1], window, norm=config.embed_norm)
            for stage, window in enumerate(config.windows())
        ]
        self.stem = embeds[0]
        rates = linear_ramp(config.drop_path, sum(config.depths))
        self.stages = nn.ModuleList()
        for stage, grid in enumerate(config.grids(config.image_size)):
            before = sum(config.depths[:stage])
            blocks = self._blocks(stage, grid, rates[before : before + config.depths[stage]])
            self.stages.append(self.new_stage(stage, blocks, grid, embeds[stage] if stage else None))
        self.norm = config.norm.build(config.dims[-1])
        self.head = self.new_head()

    def is_last(self, stage: int) -> bool:
        """Whether a stage is the last."""
        return stage == len(self.config.depths) - 1

    def prefix(self, stage: int) -> PrefixTokens | None:
        """The class token, if the family has one and the stage is the last."""
        has_one = self.class_token and self.is_last(stage)
        return PrefixTokens(self.config.dims[stage], class_token=True) if has_one else None

    def new_stage(self, stage: int, blocks: list[Block], grid: Grid, downsample: nn.Module | None) -> TokenStage:
        """A stage around its blocks."""
        return TokenStage(blocks, downsample=downsample, prefix=self.prefix(stage))

    def _blocks(self, stage: int, grid: Grid, rates: list[float]) -> list[Block]:
        config = self.config
        site = Site(
            dim=config.dims[stage],
            num_heads=config.num_heads[stage],
            grid=grid,
            num_prefix=int(self.class_token and self.is_last(stage)),
            norm=config.norm,
            dropout=config.dropout,
        )
        attention, mlp = config.attention(stage), config.mlp(stage)
        return [
            Block(site._replace(block=index), attention=attention, mlp=mlp, drop_path=rate)
            for index, rate in enumerate(rates)
        ]
