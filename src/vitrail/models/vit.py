"""The Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) with the options of later variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Positive, Rate
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.attention import AttentionConfig, Site, SoftmaxConfig
from vitrail.layers.block import Block, NormPlacement
from vitrail.layers.conv_stem import ConvStemConfig  # noqa: F401  (it registers its kind)
from vitrail.layers.dropout import Dropout
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig, StarReLUConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig, RMSNormConfig, UnbiasedLayerNormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig
from vitrail.layers.pool import ClassPoolConfig, PoolConfig
from vitrail.layers.position import AddedPositionConfig, LearnedConfig, PositionConfig
from vitrail.layers.prenorm import joinable, run_joined
from vitrail.layers.reduce import ReduceConfig, Reduced, ReducibleBlock, Reduction
from vitrail.layers.residual import linear_ramp
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Backbone, BackboneConfig, Features
from vitrail.models.initialise import Scheme, initialise


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BackboneConfig):
    """A plain ViT; the defaults are those of the paper.

    `embed_norm` normalises the embedded tokens before the first block (CLIP); `final_norm` normalises all tokens, or
    only the pooled vector. `patch_drop` is the fraction of patches that training drops at random; `reduce` prunes or
    merges tokens in training and inference (see `layers/reduce.py`).
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
    patch_drop: Rate = 0.0
    reduce: ReduceConfig | None = None
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    pool: PoolConfig = ClassPoolConfig()
    head_bias: bool = True
    init: Scheme = "paper"

    def __post_init__(self) -> None:
        """Raises ConfigError for options that do not fit together."""
        super().__post_init__()
        kinds = [position.kind for position in self.position]
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"position has a kind twice: {', '.join(kinds)}")
        if self.pool.needs_class_token and not self.class_token:
            raise ConfigError(f"pool {self.pool.kind!r} needs a class token, but class_token is False")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of the one level for an image size, or an error that names a size that fits."""
        return (self.patch.grid(image_size),)


class ViT(Backbone):
    """Patch embedding, `depth` transformer blocks, pooling and head."""

    config: ViTConfig
    distillation = False  # DeiT adds a second token and head

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.scheme = config.init
        dim, grid = config.dim, config.grid(config.image_size)
        self.patch = config.patch.build(config.channels, dim)
        self.prefix = PrefixTokens(
            dim, class_token=config.class_token, distillation=self.distillation, registers=config.registers
        )
        added = [p for p in config.position if isinstance(p, AddedPositionConfig)]
        within = tuple(p for p in config.position if not isinstance(p, AddedPositionConfig))
        self.position = nn.ModuleList(p.build(dim, grid=grid, num_prefix=self.prefix.count) for p in added)
        self.drop = Dropout(config.dropout)
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
        kind = Block if config.reduce is None else ReducibleBlock
        self.blocks = nn.ModuleList(
            kind(
                site._replace(block=index),
                attention=config.attention,
                mlp=config.mlp,
                norm_placement=config.norm_placement,
                layer_scale=config.layer_scale,
                drop_path=rate,
            )
            for index, rate in enumerate(linear_ramp(config.drop_path, config.depth))
        )
        self.reduction = _reduction(config, num_prefix=self.prefix.count)
        self.norm = config.norm.build(dim) if config.final_norm == "tokens" else nn.Identity()
        self.pool = config.pool.build(site, config.mlp)
        width = config.pool.width(dim)
        self.pool_norm = config.norm.build(width) if config.final_norm == "pooled" else nn.Identity()
        self.head = self.new_head()
        initialise(self, config.init)

    def new_head(self) -> nn.Module:
        """A fresh head; where there are no classes, none."""
        config = self.config
        if config.num_classes == 0:
            return nn.Identity()
        return nn.Linear(config.pool.width(config.dim), config.num_classes, bias=config.head_bias)

    def embed(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images B C H W -> the tokens B P+N D of the first block, and their grid."""
        grid = self.check(images)
        tokens = self.prefix(self.patch(images))
        for position in self.position:
            tokens = position(tokens, grid)
        return self.embed_norm(self.drop(tokens)), grid

    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features after the final norm."""
        return self.read(images, ())[0]

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the chosen blocks (all by default; negative counts from the end), without the final norm."""
        selected = self.chosen(layers)
        return self._run_blocks(images, selected, max(selected, default=-1) + 1)[0]

    def read(self, images: Tensor, layers: Sequence[int]) -> tuple[Features, list[Features]]:
        """`features` and the `intermediates` of these blocks, in one pass."""
        kept, state, grid = self._run_blocks(images, self.chosen(layers), len(self.blocks))
        return Features.from_tokens(self.reduction.leave(state, self.norm), grid), kept

    def _run_blocks(self, images: Tensor, selected: Sequence[int], count: int) -> tuple[list[Features], Reduced, Grid]:
        """The features after the selected blocks of the first `count`, and the state after the last of these."""
        found: dict[int, Features] = {}
        tokens, grid = self.embed(images)
        state = self.reduction.enter(tokens)
        blocks = list(self.blocks)[:count]
        direct = type(self.reduction) is Reduction and not (self.checkpointing and self.training)
        joined = run_joined(blocks, state.tokens, grid, selected) if direct and joinable(blocks, state.tokens) else None
        for index, block in enumerate(blocks):
            if joined is None:
                state = self.reduction.step(index, cast("Block", block), state, grid, self.run)
            elif index in joined:
                state = state._replace(tokens=joined[index])
            if index in selected:
                found[index] = Features.from_tokens(self.reduction.leave(state, nn.Identity()), grid)
        return [found[index] for index in selected], state, grid

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool_norm(self.pool(features.prefix, features.patches))


def _reduction(config: ViTConfig, *, num_prefix: int) -> Reduction:
    """The module that runs the blocks; raises Unsupported if the other options need all tokens."""
    if config.reduce is None and config.patch_drop == 0.0:
        return Reduction(num_prefix=num_prefix)
    option = "patch_drop" if config.reduce is None else f"reduce {config.reduce.kind!r}"
    if not isinstance(config.attention, SoftmaxConfig):
        raise Unsupported(f"{option} needs attention 'softmax', not {config.attention.kind!r}")
    if not isinstance(config.mlp, GeluMLPConfig | SwiGLUConfig | StarReLUConfig):
        raise Unsupported(f"{option} needs an MLP that treats tokens independently, not {config.mlp.kind!r}")
    if not isinstance(config.norm, LayerNormConfig | RMSNormConfig | UnbiasedLayerNormConfig):
        raise Unsupported(f"{option} needs a norm that treats tokens independently, not {config.norm.kind!r}")
    if inside := [position.kind for position in config.position if not isinstance(position, AddedPositionConfig)]:
        raise Unsupported(f"{option} needs positions that are added to the tokens, not {inside[0]!r}")
    if config.reduce is None:
        return Reduction(num_prefix=num_prefix, patch_drop=config.patch_drop)
    if config.reduce.needs_class_token and not config.class_token:
        raise Unsupported(f"{option} needs a class token, but class_token is False")
    return config.reduce.build(depth=config.depth, num_prefix=num_prefix, patch_drop=config.patch_drop)
