"""The Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) with the options of its descendants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Positive, Rate, apply
from vitrail.errors import ConfigError
from vitrail.layers.attention import AttentionConfig, Site, SoftmaxConfig
from vitrail.layers.block import Block, NormPlacement
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig
from vitrail.layers.pool import ClassPoolConfig, PoolConfig
from vitrail.layers.position import AddedPositionConfig, LearnedConfig, PositionConfig
from vitrail.layers.residual import linear_ramp
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Backbone, BackboneConfig, Features
from vitrail.models.initialise import Scheme, initialise


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BackboneConfig):
    """A plain ViT; the defaults are those of the paper.

    `embed_norm` normalises the embedded tokens before the first block (CLIP); `final_norm` stands over all tokens, or
    over the pooled vector alone.
    """

    dim: Count
    depth: CountFromZero
    num_heads: Count
    patch: PatchConfig = LinearPatchConfig()
    position: tuple[PositionConfig, ...] = (LearnedConfig(),)
    class_token: bool = True
    registers: CountFromZero = 0
    embed_norm: bool = False
    attention: AttentionConfig = SoftmaxConfig()
    mlp: MLPConfig = GeluMLPConfig()
    norm: NormConfig = LayerNormConfig()
    norm_placement: NormPlacement = "pre"
    layer_scale: Positive | None = None
    dropout: Rate = 0.0
    drop_path: Rate = 0.0
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    pool: PoolConfig = ClassPoolConfig()
    head_bias: bool = True
    init: Scheme = "paper"

    def __post_init__(self) -> None:
        """Refuses numbers and combinations that no model can have."""
        super().__post_init__()
        kinds = [position.kind for position in self.position]
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"position names a kind twice: {', '.join(kinds)}")
        if self.pool.needs_class_token and not self.class_token:
            raise ConfigError(f"pool {self.pool.kind!r} reads the class token, but class_token is False")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of the one level for an image size, or an error that names a size that fits."""
        return (self.patch.grid(image_size),)


class ViT(Backbone):
    """Images become patches, patches talk in `depth` blocks, one vector is pooled and classified."""

    config: ViTConfig
    distillation = False  # DeiT adds a second token and head

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        dim, grid = config.dim, config.grid(config.image_size)
        self.patch = config.patch.build(config.channels, dim)
        self.prefix = PrefixTokens(
            dim, class_token=config.class_token, distillation=self.distillation, registers=config.registers
        )
        added = [p for p in config.position if isinstance(p, AddedPositionConfig)]
        within = tuple(p for p in config.position if not isinstance(p, AddedPositionConfig))
        self.position = nn.ModuleList(p.build(dim, grid=grid, num_prefix=self.prefix.count) for p in added)
        self.drop = nn.Dropout(config.dropout)
        self.embed_norm = config.norm.build(dim) if config.embed_norm else nn.Identity()
        site = Site(
            dim=dim,
            num_heads=config.num_heads,
            grid=grid,
            num_prefix=self.prefix.count,
            norm=config.norm,
            positions=within,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(
            Block(
                site._replace(block=index),
                attention=config.attention,
                mlp=config.mlp,
                norm_placement=config.norm_placement,
                layer_scale=config.layer_scale,
                drop_path=rate,
            )
            for index, rate in enumerate(linear_ramp(config.drop_path, config.depth))
        )
        self.norm = config.norm.build(dim) if config.final_norm == "tokens" else nn.Identity()
        self.pool = config.pool.build(site, config.mlp)
        width = config.pool.width(dim)
        self.pool_norm = config.norm.build(width) if config.final_norm == "pooled" else nn.Identity()
        self.head = self._new_head()
        initialise(self, config.init)

    def _new_head(self) -> nn.Module:
        config = self.config
        if config.num_classes == 0:
            return nn.Identity()
        return nn.Linear(config.pool.width(config.dim), config.num_classes, bias=config.head_bias)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images B C H W -> the tokens B P+N D that enter the first block, and their grid."""
        grid = self.check(images)
        tokens = self.prefix(self.patch(images))
        for position in self.position:
            tokens = position(tokens, grid)
        return self.embed_norm(self.drop(tokens)), grid

    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features after the final norm."""
        tokens, grid = self.embed(images)
        for block in self.blocks:
            tokens = self.run(block, tokens, grid)
        return Features.from_tokens(self.norm(tokens), grid)

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the chosen blocks (all by default; negative counts from the end), without the final norm."""
        wanted = self.chosen(layers)
        found: dict[int, Features] = {}
        tokens, grid = self.embed(images)
        for index, block in enumerate(self.blocks[: max(wanted, default=-1) + 1]):
            tokens = self.run(block, tokens, grid)
            if index in wanted:
                found[index] = Features.from_tokens(tokens, grid)
        return [found[index] for index in wanted]

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool_norm(self.pool(features.prefix, features.patches))

    def classify(self, features: Features) -> Tensor:
        """Features -> logits B K, or the pooled vector where there is no head."""
        return self.head(self.pooled(features))

    def reset_head(self, num_classes: int) -> None:
        """Replaces the head by a fresh one for another number of classes; 0 takes it away."""
        self.config = apply(self.config, {"num_classes": num_classes})
        self.labels = None
        self.head = self._new_head().to(next(self.patch.parameters()))
        initialise(self.head, self.config.init, name="head")
