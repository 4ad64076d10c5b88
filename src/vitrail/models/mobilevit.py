"""MobileViT (Mehta and Rastegari 2021, arXiv:2110.02178): inverted residuals and small transformers."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.layers.attention import Attention, Site, SoftmaxAttention, SoftmaxConfig
from vitrail.layers.block import Block
from vitrail.layers.conv import ConvNorm, InvertedResidual, coarsened
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import MapStage, to_map, to_tokens
from vitrail.models.family import Family, Preset
from vitrail.models.mobile import Mobile, MobileConfig

PATCH = 2  # patch size, in pixels of a map
_NORM = LayerNormConfig(eps=1e-5)
_MLP = GeluMLPConfig(ratio=2.0, activation="silu")


@dataclass(frozen=True, kw_only=True)
class MobileViTConfig(MobileConfig):
    """Widths of the stages and numbers of inverted residuals, whose hidden width is `expansion` times the width.

    Each of the last stages ends with a transformer of `attention_dims`, `attention_depths` and `attention_heads`.
    """

    image_size: tuple[Count, Count] = (256, 256)
    attention_dims: tuple[Count, ...]
    attention_depths: tuple[Count, ...] = (2, 4, 3)
    attention_heads: Count = 4
    expansion: Count = 4

    def __post_init__(self) -> None:
        """Raises ConfigError if there are more transformers than stages, or their lists differ in length."""
        super().__post_init__()
        dims, depths = len(self.attention_dims), len(self.attention_depths)
        if dims != depths or dims > len(self.depths):
            raise ConfigError(
                f"attention_dims has {dims} entries and attention_depths {depths}; both need one for each stage "
                f"that ends in a transformer, at most {len(self.depths)} (the number of stages)"
            )


@dataclass(frozen=True, kw_only=True)
class CornerConfig(SoftmaxConfig):
    """Softmax attention among the pixels at the same position of their patches; for this family only."""

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return CornerAttention(self, site)


class CornerAttention(SoftmaxAttention):
    """The pixels at the same position of their 2 x 2 patches attend to each other: B N D -> B N D."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        q, k, v = self.heads(unfold(tokens, grid))  # B*4 A N/4 d
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)
        return self.drop(self.projection(self.norm(fold(mixed, grid))))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R N, with zeros for the other positions."""
        q, k, _ = self.heads(tokens)
        index = torch.arange(tokens.shape[1], device=tokens.device)
        rows = index if rows is None else rows
        corner = index // grid[1] % PATCH * PATCH + index % grid[1] % PATCH  # N
        logits = (q[:, :, rows] * self.scale) @ k.transpose(-2, -1)  # B A R N
        return logits.masked_fill(corner[rows, None] != corner, -float("inf")).softmax(dim=-1)


class MobileViTBlock(nn.Module):
    """B C h w -> B C h w: a transformer among the pixels at the same position of their patches, fused with the input.

    The convolutions around it exchange information between neighbouring pixels.
    """

    def __init__(self, channels: int, dim: int, *, depth: int, num_heads: int, drop_path: float) -> None:
        super().__init__()
        self.local = ConvNorm(channels, channels, 3, activation=nn.SiLU())
        self.widen = nn.Conv2d(channels, dim, 1, bias=False)
        site = Site(dim=dim, num_heads=num_heads, grid=(1, 1), norm=_NORM)
        self.transformer = nn.ModuleList(
            Block(site._replace(block=index), attention=CornerConfig(), mlp=_MLP, drop_path=drop_path)
            for index in range(depth)
        )
        self.norm = _NORM.build(dim)
        self.narrow = ConvNorm(dim, channels, 1, activation=nn.SiLU())
        self.fuse = ConvNorm(2 * channels, channels, 3, activation=nn.SiLU())

    def forward(self, maps: Tensor) -> Tensor:
        """B C h w -> B C h w."""
        wide = self.widen(self.local(maps))  # B D h w
        size = (wide.shape[2], wide.shape[3])
        patches = coarsened(size, PATCH)
        whole = (patches[0] * PATCH, patches[1] * PATCH)
        if whole != size:  # resampled instead of padded, so that attention needs no mask
            wide = F.interpolate(wide, size=whole, mode="bilinear", align_corners=False)
        tokens = to_tokens(wide)
        for block in self.transformer:
            tokens = block(tokens, whole)
        wide = to_map(self.norm(tokens), whole)
        if whole != size:
            wide = F.interpolate(wide, size=size, mode="bilinear", align_corners=False)
        return self.fuse(torch.cat([maps, self.narrow(wide)], dim=1))


def unfold(tokens: Tensor, grid: Grid) -> Tensor:
    """The pixels B N D of a map -> B*4 N/4 D, grouped by their position in the patch."""
    cut = tokens.unflatten(1, (grid[0] // PATCH, PATCH, grid[1] // PATCH, PATCH))  # B h p w q D
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(0, 2)  # B p q h w D -> Bpq N/4 D


def fold(tokens: Tensor, grid: Grid) -> Tensor:
    """B*4 N/4 D -> B N D, the inverse."""
    cut = tokens.unflatten(1, (grid[0] // PATCH, grid[1] // PATCH)).unflatten(0, (-1, PATCH, PATCH))  # B p q h w D
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(1, 4)  # B h p w q D -> B N D


class MobileViT(Mobile):
    """Stages of inverted residuals; the last ones end with transformers."""

    config: MobileViTConfig

    def __init__(self, config: MobileViTConfig) -> None:
        rates = iter(linear_ramp(config.drop_path, sum(config.depths) + len(config.attention_dims)))
        super().__init__(config, [_stage(config, stage, rates) for stage in range(len(config.depths))])


def _stage(config: MobileViTConfig, stage: int, rates: Iterator[float]) -> MapStage:
    """One stage; all but the first halve the map."""
    before, dim, depth = (config.stem_dim, *config.dims)[stage], config.dims[stage], config.depths[stage]
    blocks: list[nn.Module] = []
    for index in range(depth):
        stride = 2 if stage > 0 and index == 0 else 1
        hidden = config.expansion * before
        blocks.append(InvertedResidual(before, dim, hidden=hidden, stride=stride, drop_path=next(rates)))
        before = dim
    transformer = stage - len(config.depths) + len(config.attention_dims)
    if transformer >= 0:
        blocks.append(
            MobileViTBlock(
                dim,
                config.attention_dims[transformer],
                depth=config.attention_depths[transformer],
                num_heads=config.attention_heads,
                drop_path=next(rates),
            )
        )
    return MapStage(blocks)


def _preset(size: str, hf: str, *, expansion: int, dims: tuple[int, ...], attention: tuple[int, ...]) -> Preset:
    config = MobileViTConfig(
        stem_dim=16,
        dims=dims,
        depths=(1, 3, 1, 1, 1),
        attention_dims=attention,
        expansion=expansion,
        final_dim=4 * dims[-1],
    )
    return Preset(config, f"timm mobilevit_{size}.*; hf apple/mobilevit-{hf}")


MOBILEVIT = Family(
    name="mobilevit",
    config=MobileViTConfig,
    module=MobileViT,
    paper="arXiv:2110.02178",
    idea="Convolutions for local features, small transformers between them for global ones, separately for each of the "
    "four pixels of a patch. With the inductive bias of convolutions, few parameters are enough.",
    use="Phones and other devices that need a small model; images of any size.",
    presets={
        "mobilevit_xxs": _preset("xxs", "xx-small", expansion=2, dims=(16, 24, 48, 64, 80), attention=(64, 80, 96)),
        "mobilevit_xs": _preset("xs", "x-small", expansion=4, dims=(32, 48, 64, 80, 96), attention=(96, 120, 144)),
        "mobilevit_s": _preset("s", "small", expansion=4, dims=(32, 64, 96, 128, 160), attention=(144, 192, 240)),
    },
)
