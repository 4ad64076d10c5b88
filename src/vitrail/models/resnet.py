"""ResNet (He et al. 2015, arXiv:1512.03385), with the stride of a bottleneck in its 3 x 3 convolution ("v1.5")."""

from dataclasses import dataclass

from torch import nn

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.layers.conv import ConvNorm, ResidualBlock, coarsened
from vitrail.layers.patch import Grid
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import MapStage
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise, initialise_convolutions
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(StagedConfig):
    """The widths are those of the outputs of the blocks; the inner width of a bottleneck is a quarter.

    `zero_init_last` initialises the last gain of each branch with 0, so that blocks start as the identity
    (arXiv:1706.02677). `deep_stem` has three 3 x 3 convolutions in place of one of 7 x 7, and `average_shortcut` takes
    means before strided shortcuts (ResNet-D, arXiv:1812.01187), as in RT-DETR, whose first basic block has a
    convolution in its shortcut.
    """

    dynamic_size: bool = True
    stem_dim: Count = 64
    bottleneck: bool = True
    zero_init_last: bool = True
    deep_stem: bool = False
    average_shortcut: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for widths of bottlenecks that are not divisible by 4."""
        super().__post_init__()
        if self.bottleneck and (wrong := [dim for dim in self.dims if dim % 4]):
            raise ConfigError(f"dims contains {wrong[0]}; with bottlenecks it must be divisible by 4")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse: strides 4, 8, 16, 32."""
        return tuple(coarsened(image_size, 4 << stage) for stage in range(len(self.depths)))


class ResNet(Staged):
    """A stem with stride 4, then stages of residual blocks; all but the first halve the map."""

    config: ResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.stem = nn.Sequential(*_stem(config), nn.MaxPool2d(3, stride=2, padding=1))
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        widths = (config.stem_dim, *config.dims)
        self.stages = nn.ModuleList(
            MapStage(
                ResidualBlock(
                    widths[stage] if block == 0 else dim,
                    dim,
                    bottleneck=config.bottleneck,
                    stride=2 if block == 0 and stage > 0 else 1,
                    drop_path=next(rates),
                    gain=0.0 if config.zero_init_last else 1.0,
                    average=config.average_shortcut,
                    project=config.average_shortcut and not config.bottleneck and block == 0,
                )
                for block in range(depth)
            )
            for stage, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True))
        )
        self.norm = nn.Identity()
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        initialise_convolutions(self)


def _stem(config: ResNetConfig) -> list[nn.Module]:
    """The convolutions before pooling, the first of which has stride 2."""
    if not config.deep_stem:
        return [ConvNorm(config.channels, config.stem_dim, 7, stride=2, activation=nn.ReLU())]
    half = max(config.stem_dim // 2, 1)
    widths = ((config.channels, half, 2), (half, half, 1), (half, config.stem_dim, 1))
    return [ConvNorm(before, dim, 3, stride=stride, activation=nn.ReLU()) for before, dim, stride in widths]


_NARROW, _WIDE = (64, 128, 256, 512), (256, 512, 1024, 2048)
_SIZES = {
    "18": ((2, 2, 2, 2), False),
    "34": ((3, 4, 6, 3), False),
    "50": ((3, 4, 6, 3), True),
    "101": ((3, 4, 23, 3), True),
    "152": ((3, 8, 36, 3), True),
}

RESNET = Family(
    name="resnet",
    config=ResNetConfig,
    module=ResNet,
    paper="arXiv:1512.03385",
    idea="Convolutional blocks with residual connections: each learns a change of its input, so that networks of a "
    "hundred layers are easy to train.",
    use="The standard baseline for vision transformers, and a safe choice for small datasets.",
    presets={
        f"resnet{name}": Preset(
            ResNetConfig(dims=_WIDE if bottleneck else _NARROW, depths=depths, bottleneck=bottleneck),
            f"timm resnet{name}.*; torchvision resnet{name}; hf microsoft/resnet-{name}",
        )
        for name, (depths, bottleneck) in _SIZES.items()
    },
)
