"""EfficientNet (Tan and Le 2019, arXiv:1905.11946): inverted residuals, made wider, deeper and finer all at once."""

import math
from dataclasses import dataclass

from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.conv import InvertedResidual
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import MapStage
from vitrail.models.family import Family, Preset
from vitrail.models.mobile import Mobile, MobileConfig

# Kernel, stride and expansion of each group of blocks; a group that keeps the size belongs to the level before it.
GROUPS = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))


@dataclass(frozen=True, kw_only=True)
class EfficientNetConfig(MobileConfig):
    """Widths and depths of seven groups of blocks, which make five levels."""

    def __post_init__(self) -> None:
        """Refuses another number of groups."""
        super().__post_init__()
        if len(self.depths) != len(GROUPS):
            raise ConfigError(f"depths has {len(self.depths)} numbers; there are {len(GROUPS)} groups of blocks")

    @property
    def num_levels(self) -> int:
        """How many maps of different sizes there are."""
        return 5


class EfficientNet(Mobile):
    """Inverted residuals with squeeze-excite, a quarter as wide as what comes into the block."""

    config: EfficientNetConfig

    def __init__(self, config: EfficientNetConfig) -> None:
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        before, levels = config.stem_dim, list[list[nn.Module]]()
        for dim, depth, (kernel, stride, expansion) in zip(config.dims, config.depths, GROUPS, strict=True):
            if stride == 2 or not levels:
                levels.append([])
            for block in range(depth):
                levels[-1].append(
                    InvertedResidual(
                        before,
                        dim,
                        kernel,
                        hidden=expansion * before,
                        stride=stride if block == 0 else 1,
                        squeeze=max(before // 4, 1),
                        drop_path=next(rates),
                    )
                )
                before = dim
        super().__init__(config, (MapStage(blocks) for blocks in levels))


_DIMS, _DEPTHS = (16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1)
_SCALES = {  # how much wider and deeper, and the image size
    "b0": (1.0, 1.0, 224),
    "b1": (1.0, 1.1, 240),
    "b2": (1.1, 1.2, 260),
    "b3": (1.2, 1.4, 300),
    "b4": (1.4, 1.8, 380),
    "b5": (1.6, 2.2, 456),
    "b6": (1.8, 2.6, 528),
    "b7": (2.0, 3.1, 600),
}


def _wider(dim: int, factor: float) -> int:
    """The nearest multiple of 8 to a width, but not less than nine tenths of it."""
    nearest = max(8, int(dim * factor + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * dim * factor else nearest


def _preset(size: str) -> Preset:
    wider, deeper, pixels = _SCALES[size]
    config = EfficientNetConfig(
        image_size=(pixels, pixels),
        dims=tuple(_wider(dim, wider) for dim in _DIMS),
        depths=tuple(math.ceil(depth * deeper) for depth in _DEPTHS),
        stem_dim=_wider(32, wider),
        final_dim=_wider(1280, wider),
    )
    return Preset(config, f"timm efficientnet_{size}.*")


EFFICIENTNET = Family(
    name="efficientnet",
    config=EfficientNetConfig,
    module=EfficientNet,
    paper="arXiv:1905.11946",
    idea="A small network of inverted residuals is found by search. Width, depth and image size then grow together by "
    "one factor instead of one at a time.",
    use="Few parameters and few operations for their accuracy, on processors more than on graphics cards.",
    presets={f"efficientnet_{size}": _preset(size) for size in _SCALES},
)
