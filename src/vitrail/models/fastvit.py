"""FastViT: a hybrid with branches in training that are merged for inference (arXiv:2303.14189)."""

import copy
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError
from vitrail.layers.attention import Site, SoftmaxAttention, SoftmaxConfig
from vitrail.layers.conv import ConvNorm, coarsened
from vitrail.layers.fuse import Fusable, fold_batch_norm_before
from vitrail.layers.patch import Grid
from vitrail.layers.reparam import RepConv, RepMixer, RepPosition, mobile_one
from vitrail.layers.residual import DropPath, LayerScale, linear_ramp
from vitrail.layers.stage import MapStage, OnTokens, to_map, to_tokens
from vitrail.models.backbone import Features
from vitrail.models.family import Family, Preset
from vitrail.models.fused import FusedConfig, FusedStaged
from vitrail.models.initialise import initialise, initialise_convolutions
from vitrail.models.staged import check_heads

Mixer = Literal["rep", "attention"]


@dataclass(frozen=True, kw_only=True)
class FastViTConfig(FusedConfig):
    """The mixer of each stage; a stage with attention starts with conditional positions."""

    image_size: tuple[Count, Count] = (256, 256)
    mlp_ratios: tuple[Positive, ...]
    mixers: tuple[Mixer, ...] = ("rep", "rep", "rep", "rep")
    head_dim: Count = 32
    layer_scale: Positive = 1e-5
    dropout: Rate = 0.0
    dynamic_size: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError for lists without one entry per stage, and widths that are not multiples."""
        super().__post_init__()
        if len(self.mixers) != len(self.depths):
            raise ConfigError(f"mixers has {len(self.mixers)} entries, but depths has {len(self.depths)}")
        for before, after in zip(self.dims, self.dims[1:], strict=False):
            if after % before:
                raise ConfigError(f"dims: {after} is not a multiple of the previous width, {before}")
        check_heads(self.dims, self.mixers, head_dim=self.head_dim)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level: a quarter of the image, then half of the level before, rounded up."""
        return tuple(coarsened(image_size, 4 << stage) for stage in range(len(self.depths)))


class FastViT(FusedStaged):
    """A stem of MobileOne blocks, stages of RepMixer or attention, and a final, wider convolution."""

    config: FastViTConfig

    def __init__(self, config: FastViTConfig) -> None:
        super().__init__(config)
        dims = config.dims
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stem = nn.Sequential(
            mobile_one(config.channels, dims[0], 3, stride=2),
            mobile_one(dims[0], dims[0], 3, stride=2, groups=dims[0]),
            mobile_one(dims[0], dims[0], 1),
        )
        self.stages = nn.ModuleList(
            MapStage(
                [FastBlock(config, stage, drop_path=next(rates)) for _ in range(depth)],
                downsample=self._downsample(stage),
            )
            for stage, depth in enumerate(config.depths)
        )
        self.norm = nn.Identity()
        self.final = mobile_one(dims[-1], self.width, 3, groups=dims[-1], squeeze=self.width // 16)
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        self.settle()

    def _downsample(self, stage: int) -> nn.Module | None:
        steps: list[nn.Module] = []
        if stage:
            before, dim = self.config.dims[stage - 1 : stage + 1]
            steps += [RepConv(before, dim, (7, 3), stride=2, groups=before), mobile_one(dim, dim, 1)]
        if self.config.mixers[stage] == "attention":
            steps.append(RepPosition(self.config.dims[stage]))
        return nn.Sequential(*steps) if steps else None

    @property
    def width(self) -> int:
        """The width of the input of the head."""
        return 2 * self.config.dims[-1]

    def pooled(self, features: Features) -> Tensor:
        """Features -> the input of the head, B 2D: the mean of the last map after a wider convolution."""
        return self.final(features.pyramid[-1]).mean(dim=(2, 3))


class FastBlock(nn.Module):
    """A mixer with its residual, then a convolutional MLP on a residual branch: B D h w -> B D h w."""

    def __init__(self, config: FastViTConfig, stage: int, *, drop_path: float) -> None:
        super().__init__()
        dim, self.drop_path = config.dims[stage], DropPath(drop_path)
        self.mixer = (
            RepMixer(dim, layer_scale=config.layer_scale)
            if config.mixers[stage] == "rep"
            else AttentionMixer(dim, config, drop_path=drop_path)
        )
        self.mlp = conv_mlp(dim, int(dim * config.mlp_ratios[stage]), dropout=config.dropout)
        self.scale = OnTokens(LayerScale(dim, config.layer_scale))

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        maps = self.mixer(maps)
        return maps + self.drop_path(self.scale(self.mlp(maps)))


class AttentionMixer(nn.Module):
    """Attention between all cells, on a residual branch: B D h w -> B D h w."""

    def __init__(self, dim: int, config: FastViTConfig, *, drop_path: float) -> None:
        super().__init__()
        site = Site(dim=dim, num_heads=max(dim // config.head_dim, 1), grid=(1, 1), dropout=config.dropout)
        self.branch = NormAttention(site, head_dim=config.head_dim)
        self.scale = OnTokens(LayerScale(dim, config.layer_scale))
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return maps + self.drop_path(self.scale(self.branch(maps)))


class MapAttention(nn.Module):
    """Attention between the cells of a map: B D h w -> B D h w."""

    def __init__(self, site: Site, *, head_dim: int) -> None:
        super().__init__()
        self.attention = SoftmaxAttention(SoftmaxConfig(head_dim=head_dim, bias="none"), site)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        grid = (maps.shape[2], maps.shape[3])
        return to_map(self.attention(to_tokens(maps), grid), grid)


class NormAttention(Fusable):
    """Batch norm, then attention: B D h w -> B D h w."""

    def __init__(self, site: Site, *, head_dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(site.dim)
        self.mix = MapAttention(site, head_dim=head_dim)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        return self.mix(self.norm(maps))

    def fused(self) -> nn.Module:
        """Attention with a bias of queries, keys and values, which contains the folded norm."""
        mix = copy.deepcopy(self.mix)
        mix.attention.qkv = fold_batch_norm_before(self.norm, mix.attention.qkv)
        return mix


def conv_mlp(dim: int, hidden: int, *, dropout: float) -> nn.Sequential:
    """A 7 x 7 depth-wise convolution, then an MLP of 1 x 1 convolutions with GELU: B D h w -> B D h w."""
    layers = nn.Sequential(
        ConvNorm(dim, dim, 7, groups=dim),
        nn.Conv2d(dim, hidden, 1),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Conv2d(hidden, dim, 1),
        nn.Dropout(dropout),
    )
    initialise_convolutions(layers, std=0.02)
    return layers


_T8, _12, _24, _36 = (2, 2, 4, 2), (2, 2, 6, 2), (4, 4, 12, 4), (6, 6, 18, 6)
_SMALL = (64, 128, 256, 512)


def _fastvit(name: str, dims: tuple[int, ...], depths: tuple[int, ...], ratio: float, last: Mixer) -> Preset:
    config = FastViTConfig(dims=dims, depths=depths, mlp_ratios=(ratio,) * 4, mixers=("rep", "rep", "rep", last))
    return Preset(config, f"timm fastvit_{name}.*")


FASTVIT = Family(
    name="fastvit",
    config=FastViTConfig,
    module=FastViT,
    paper="arXiv:2303.14189",
    idea="Each layer is a sum of branches in training; `model.fuse()` merges them into one convolution with the same "
    "output, including the residual connection of the mixer. Some sizes have attention in the last stage.",
    use="Low latency on phones and GPUs, at any image size.",
    presets={
        "fastvit_t8": _fastvit("t8", (48, 96, 192, 384), _T8, 3.0, "rep"),
        "fastvit_t12": _fastvit("t12", _SMALL, _12, 3.0, "rep"),
        "fastvit_s12": _fastvit("s12", _SMALL, _12, 4.0, "rep"),
        "fastvit_sa12": _fastvit("sa12", _SMALL, _12, 4.0, "attention"),
        "fastvit_sa24": _fastvit("sa24", _SMALL, _24, 4.0, "attention"),
        "fastvit_sa36": _fastvit("sa36", _SMALL, _36, 4.0, "attention"),
        "fastvit_ma36": _fastvit("ma36", (76, 152, 304, 608), _36, 4.0, "attention"),
    },
)
