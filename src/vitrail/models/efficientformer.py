"""EfficientFormer: pooling on maps, then attention on the tokens of the last stage (arXiv:2206.01191)."""

from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.layers.attention import Attention, AttentionConfig, Site
from vitrail.layers.attention.biased import BiasedAttention, BiasedConfig
from vitrail.layers.block import Block
from vitrail.layers.conv import ConvNorm, coarsened
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath, LayerScale, linear_ramp
from vitrail.layers.stage import MapStage, OnTokens, Run, State, TokenStage, to_map, to_tokens
from vitrail.layers.token_mixer import pool_difference
from vitrail.models.distilled import Distilled
from vitrail.models.family import Family, Preset
from vitrail.models.fused import FusedConfig, FusedStaged
from vitrail.models.initialise import initialise

NUM_HEADS, HEAD_DIM, VALUE_RATIO = 8, 32, 4.0
NORM = LayerNormConfig(eps=1e-5)


@dataclass(frozen=True, kw_only=True)
class EfficientFormerConfig(FusedConfig):
    """The last `attention_blocks` blocks of the last stage have attention; all others pool."""

    attention_blocks: Count
    mlp_ratio: Positive = 4.0
    layer_scale: Positive = 1e-5
    dropout: Rate = 0.0

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level: a quarter of the image, then half of the previous level, rounded up."""
        return tuple(coarsened(image_size, 4 << stage) for stage in range(len(self.depths)))


class EfficientFormer(Distilled, FusedStaged):
    """A convolutional stem, stages with pooling, and attention at the end."""

    config: EfficientFormerConfig

    def __init__(self, config: EfficientFormerConfig) -> None:
        super().__init__(config)
        dims, last = config.dims, len(config.depths) - 1
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stem = nn.Sequential(
            ConvNorm(config.channels, dims[0] // 2, 3, stride=2, bias=True, activation=nn.ReLU()),
            ConvNorm(dims[0] // 2, dims[0], 3, stride=2, bias=True, activation=nn.ReLU()),
        )
        self.stages = nn.ModuleList()
        for stage, depth in enumerate(config.depths):
            pooling = depth if stage < last else max(depth - config.attention_blocks, 0)
            blocks: list[nn.Module] = [PoolBlock(dims[stage], config, drop_path=next(rates)) for _ in range(pooling)]
            blocks += [self._attention_block(index, next(rates)) for index in range(pooling, depth)]
            downsample = ConvNorm(dims[stage - 1], dims[stage], 3, stride=2, bias=True) if stage else None
            self.stages.append((MapStage if stage < last else MixedStage)(blocks, downsample=downsample))
        self.norm = NORM.build(dims[-1])
        self.head, self.distillation_head = self.new_head(), self.new_head()
        initialise(self, "trunc_normal")
        self.settle()

    def _attention_block(self, index: int, drop_path: float) -> Block:
        config = self.config
        site = Site(
            dim=config.dims[-1],
            num_heads=NUM_HEADS,
            grid=config.grid(config.image_size),
            norm=NORM,
            dropout=config.dropout,
            block=index,
        )
        return Block(
            site,
            attention=MetaAttentionConfig(),
            mlp=GeluMLPConfig(ratio=config.mlp_ratio),
            layer_scale=config.layer_scale,
            drop_path=drop_path,
        )


class MixedStage(TokenStage):
    """Blocks on maps, then blocks on tokens."""

    def step(self, block: nn.Module, state: State, run: Run) -> State:
        """Runs one block."""
        if isinstance(block, Block):
            return super().step(block, state, run)
        return State(to_tokens(run(block, to_map(state.x, state.grid))), state.grid)


class PoolBlock(nn.Module):
    """Pooling, then an MLP of 1 x 1 convolutions with batch norms, each on a residual branch: B D h w -> B D h w."""

    def __init__(self, dim: int, config: EfficientFormerConfig, *, drop_path: float) -> None:
        super().__init__()
        hidden = int(dim * config.mlp_ratio)
        self.scale1 = OnTokens(LayerScale(dim, config.layer_scale))
        self.mlp = nn.Sequential(
            ConvNorm(dim, hidden, 1, bias=True, activation=nn.GELU()),
            nn.Dropout(config.dropout),
            ConvNorm(hidden, dim, 1, bias=True),
            nn.Dropout(config.dropout),
        )
        self.scale2 = OnTokens(LayerScale(dim, config.layer_scale))
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        maps = maps + self.drop_path(self.scale1(pool_difference(maps)))
        return maps + self.drop_path(self.scale2(self.mlp(maps)))


@dataclass(frozen=True, kw_only=True)
class MetaAttentionConfig(AttentionConfig):
    """LeViT's attention with plain linear maps, without batch norms and activation; for this family only."""

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return MetaAttention(site)


class MetaAttention(BiasedAttention):
    """softmax(q k / sqrt(d) + b(|dy|, |dx|)) v: B N D -> B N D."""

    def __init__(self, site: Site) -> None:
        super().__init__(BiasedConfig(head_dim=HEAD_DIM, value_ratio=VALUE_RATIO), site)
        values = self.num_heads * self.value_dim
        self.qkv = nn.Linear(site.dim, 2 * self.num_heads * self.head_dim + values)
        self.activation = nn.Identity()
        self.projection = nn.Linear(values, site.dim)


def _size(name: str, dims: tuple[int, ...], depths: tuple[int, ...], attention_blocks: int) -> Preset:
    config = EfficientFormerConfig(dims=dims, depths=depths, attention_blocks=attention_blocks)
    return Preset(config, f"timm efficientformer_{name}.*")


EFFICIENTFORMER = Family(
    name="efficientformer",
    config=EfficientFormerConfig,
    module=EfficientFormer,
    paper="arXiv:2206.01191",
    idea="Avoids operations that are slow on phones: most blocks pool on maps, which are reshaped to tokens only once, "
    "for a few blocks of attention at the coarsest grid. Its sizes were chosen by measured latency.",
    use="Phones and other small devices, at a fixed image size, after `model.fuse()`; better with a teacher.",
    presets={
        "efficientformer_l1": _size("l1", (48, 96, 224, 448), (3, 2, 6, 4), 1),
        "efficientformer_l3": _size("l3", (64, 128, 320, 512), (4, 4, 12, 6), 4),
        "efficientformer_l7": _size("l7", (96, 192, 384, 768), (6, 6, 18, 8), 8),
    },
)
