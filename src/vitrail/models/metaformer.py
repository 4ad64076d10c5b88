"""MetaFormer: one architecture for several token mixers.

PoolFormer: Yu et al. 2021, arXiv:2111.11418. PoolFormer v2, ConvFormer, CAFormer: Yu et al. 2022, arXiv:2210.13452.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.dropout import Dropout
from vitrail.layers.embed import Window
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig, StarReLUConfig
from vitrail.layers.norm import GroupNormConfig, LayerNormConfig, NormConfig, UnbiasedLayerNormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath, LayerScale, linear_ramp
from vitrail.layers.stage import OnTokens, TokenStage
from vitrail.layers.token_mixer import PoolMixer, SepConvMixer
from vitrail.models.backbone import Features
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise, initialise_convolutions
from vitrail.models.staged import Staged, StagedConfig, check_heads

Mixer = Literal["pool", "conv", "attention"]
STEM, DOWNSAMPLE = Window(7, 4, 2), Window(3, 2, 1)


@dataclass(frozen=True, kw_only=True)
class MetaFormerConfig(StagedConfig):
    """The mixer of each stage and the layers around it; the defaults are those of the second paper.

    `embed_norm` normalises after the stem and before each downsampling. `res_scale` has a flag for each stage: whether
    the residual stream has a gain. `final_norm` "map" normalises the last map, with the norm of the blocks; "pooled" is
    a LayerNorm of the pooled vector. `mlp_head`: the head is an MLP with squared ReLU.
    """

    mixers: tuple[Mixer, ...]
    head_dim: Count = 32
    mlp: MLPConfig = StarReLUConfig()
    norm: NormConfig = UnbiasedLayerNormConfig()
    embed_norm: bool = True
    layer_scale: Positive | None = None
    res_scale: tuple[bool, ...] = (False, False, True, True)
    final_norm: Literal["map", "pooled"] = "pooled"
    mlp_head: bool = True
    dropout: Rate = 0.0
    dynamic_size: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError if a list does not have one entry per stage."""
        super().__post_init__()
        for name, each in (("mixers", self.mixers), ("res_scale", self.res_scale)):
            if len(each) != len(self.depths):
                raise ConfigError(f"{name} has {len(each)} entries, but depths has {len(self.depths)}")
        check_heads(self.dims, self.mixers, head_dim=self.head_dim)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level: a quarter of the image, then half of the level before, rounded up."""
        height, width = image_size
        if min(height, width) < 3:
            raise InputError(f"an image of {height} x {width} pixels is too small; the smallest that fits is 3 x 3")
        levels = [STEM.grid(image_size)]
        for _ in self.depths[1:]:
            levels.append(DOWNSAMPLE.grid(levels[-1]))
        return tuple(levels)


class MetaFormer(Staged):
    """Four stages of blocks that differ only in their mixer."""

    config: MetaFormerConfig

    def __init__(self, config: MetaFormerConfig) -> None:
        super().__init__(config)
        dims, grids = config.dims, config.grids(config.image_size)
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stem = nn.Sequential(nn.Conv2d(config.channels, dims[0], *STEM), self._embed_norm(dims[0]))
        self.stages = nn.ModuleList()
        for index, (dim, depth) in enumerate(zip(dims, config.depths, strict=True)):
            site = Site(
                dim=dim,
                num_heads=max(dim // config.head_dim, 1),
                grid=grids[index],
                norm=config.norm,
                dropout=config.dropout,
            )
            blocks = [
                MetaBlock(site._replace(block=number), config, stage=index, drop_path=next(rates))
                for number in range(depth)
            ]
            self.stages.append(TokenStage(blocks, downsample=self._downsample(index)))
        self.norm = config.norm.build(dims[-1]) if config.final_norm == "map" else nn.Identity()
        self.pool_norm = LayerNormConfig().build(dims[-1]) if config.final_norm == "pooled" else nn.Identity()
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        initialise_convolutions(self, std=0.02)

    def _embed_norm(self, dim: int) -> nn.Module:
        return OnTokens(UnbiasedLayerNormConfig().build(dim)) if self.config.embed_norm else nn.Identity()

    def _downsample(self, stage: int) -> nn.Module | None:
        if stage == 0:
            return None
        before, after = self.config.dims[stage - 1 : stage + 1]
        return nn.Sequential(self._embed_norm(before), nn.Conv2d(before, after, *DOWNSAMPLE))

    def new_head(self) -> nn.Module:
        """A fresh head; where there are no classes, none."""
        if self.config.mlp_head and self.config.num_classes:
            return MLPHead(self.width, self.config.num_classes, dropout=self.config.dropout)
        return super().new_head()

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool_norm(super().pooled(features))


class MetaBlock(nn.Module):
    """Mixer and MLP, each on a residual branch: B N D -> B N D; branch and stream may have gains."""

    def __init__(self, site: Site, config: MetaFormerConfig, *, stage: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = site.norm.build(site.dim)
        self.mixer = build_mixer(config.mixers[stage], site, head_dim=config.head_dim)
        self.scale1, self.res_scale1 = self._scales(site.dim, config, stage)
        self.norm2 = site.norm.build(site.dim)
        self.mlp = config.mlp.build(site.dim, norm=site.norm, dropout=site.dropout)
        self.scale2, self.res_scale2 = self._scales(site.dim, config, stage)
        self.drop_path = DropPath(drop_path)

    @staticmethod
    def _scales(dim: int, config: MetaFormerConfig, stage: int) -> tuple[nn.Module, nn.Module]:
        branch = nn.Identity() if config.layer_scale is None else LayerScale(dim, config.layer_scale)
        return branch, LayerScale(dim, 1.0) if config.res_scale[stage] else nn.Identity()

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        mixed = self.mixer(self.norm1(tokens), grid)
        tokens = self.res_scale1(tokens) + self.drop_path(self.scale1(mixed))
        thought = self.mlp(self.norm2(tokens), grid)
        return self.res_scale2(tokens) + self.drop_path(self.scale2(thought))


def build_mixer(mixer: Mixer, site: Site, *, head_dim: int) -> nn.Module:
    """The mixer of one block: B N D -> B N D."""
    if mixer == "pool":
        return PoolMixer()
    if mixer == "conv":
        return SepConvMixer(site.dim)
    attention = SoftmaxConfig(head_dim=head_dim, bias="none").build(site)
    attention.get_submodule("projection").register_parameter("bias", None)  # as in all layers of these blocks
    return attention


class MLPHead(nn.Module):
    """Linear, squared ReLU, LayerNorm, linear: B D -> B K."""

    def __init__(self, dim: int, num_classes: int, *, ratio: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, ratio * dim)
        self.norm = LayerNormConfig().build(ratio * dim)
        self.drop = Dropout(dropout)
        self.fc2 = nn.Linear(ratio * dim, num_classes)

    def forward(self, vectors: Tensor) -> Tensor:
        """B D -> B K."""
        return self.fc2(self.drop(self.norm(F.relu(self.fc1(vectors)).square())))


WIDTHS = {
    "s": (64, 128, 320, 512),
    "pool_m": (96, 192, 384, 768),
    "m": (96, 192, 384, 576),
    "b": (128, 256, 512, 768),
}
POOL_DEPTHS = {12: (2, 2, 6, 2), 24: (4, 4, 12, 4), 36: (6, 6, 18, 6), 48: (8, 8, 24, 8)}
DEPTHS = {18: (3, 3, 9, 3), 36: (3, 12, 18, 3)}


def _poolformer(width: str, depth: int) -> Preset:
    """The first paper's: GELU, biases, a LayerScale, a linear head; timm's models normalise the pooled vector."""
    config = MetaFormerConfig(
        dims=WIDTHS[width],
        depths=POOL_DEPTHS[depth],
        mixers=("pool",) * 4,
        mlp=GeluMLPConfig(),
        norm=GroupNormConfig(),
        embed_norm=False,
        layer_scale=1e-5 if depth < 36 else 1e-6,
        res_scale=(False,) * 4,
        mlp_head=False,
    )
    return Preset(config, f"timm poolformer_{width[-1]}{depth}.*; hf sail/poolformer_{width[-1]}{depth}")


def _poolformer_v2(width: str, depth: int) -> Preset:
    config = MetaFormerConfig(
        dims=WIDTHS[width],
        depths=POOL_DEPTHS[depth],
        mixers=("pool",) * 4,
        norm=GroupNormConfig(eps=1e-6, bias=False),
        mlp_head=False,
    )
    return Preset(config, f"timm poolformerv2_{width[-1]}{depth}.*")


def _baseline(family: str, width: str, depth: int) -> Preset:
    later: Mixer = "conv" if family == "convformer" else "attention"
    config = MetaFormerConfig(dims=WIDTHS[width], depths=DEPTHS[depth], mixers=("conv", "conv", later, later))
    return Preset(config, f"timm {family}_{width}{depth}.*")


_POOL_SIZES = (("s", 12), ("s", 24), ("s", 36), ("pool_m", 36), ("pool_m", 48))
_SIZES = (("s", 18), ("s", 36), ("m", 36), ("b", 36))

METAFORMER = Family(
    name="metaformer",
    config=MetaFormerConfig,
    module=MetaFormer,
    paper="arXiv:2111.11418; arXiv:2210.13452",
    idea="The structure of norm, mixer, MLP and residuals matters more than the mixer: even pooling works. Best are "
    "convolutions in the early stages and attention in the late ones (CAFormer).",
    use="High accuracy for its size, at any image size: CAFormer; PoolFormer as a baseline without attention.",
    presets={
        **{f"poolformer_{width[-1]}{depth}": _poolformer(width, depth) for width, depth in _POOL_SIZES},
        **{f"poolformerv2_{width[-1]}{depth}": _poolformer_v2(width, depth) for width, depth in _POOL_SIZES},
        **{f"convformer_{width}{depth}": _baseline("convformer", width, depth) for width, depth in _SIZES},
        **{f"caformer_{width}{depth}": _baseline("caformer", width, depth) for width, depth in _SIZES},
    },
)
