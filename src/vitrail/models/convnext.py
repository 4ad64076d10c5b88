"""ConvNeXt (Liu et al. 2022, arXiv:2201.03545): a ResNet with the design choices of transformers, without attention."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.init import trunc_normal_, zeros_

from vitrail.config import Positive
from vitrail.errors import InputError
from vitrail.layers.conv import depthwise
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath, LayerScale, linear_ramp
from vitrail.layers.stage import MapStage, OnTokens
from vitrail.models.backbone import Features
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig

_NORM = LayerNormConfig()


@dataclass(frozen=True, kw_only=True)
class ConvNeXtConfig(StagedConfig):
    """Widths and depths of four stages; the last norm is applied to the pooled vector, with its own eps."""

    dynamic_size: bool = True
    layer_scale: Positive | None = 1e-6
    pool_norm_eps: Positive = 1e-6

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse: strides 4, 8, 16, 32, rounded down."""
        height, width = image_size
        least = 4 << (len(self.depths) - 1)
        if min(image_size) < least:
            raise InputError(
                f"image size {height} x {width} is too small for {len(self.depths)} stages; the nearest size that fits "
                f"is {max(height, least)} x {max(width, least)}"
            )
        return tuple((height // step, width // step) for step in (4 << stage for stage in range(len(self.depths))))


class ConvNeXtBlock(nn.Module):
    """B D h w -> B D h w: a 7 x 7 depth-wise convolution, then an MLP per pixel."""

    def __init__(self, dim: int, *, layer_scale: float | None, drop_path: float) -> None:
        super().__init__()
        self.conv = depthwise(dim, 7)
        self.norm = _NORM.build(dim)
        self.mlp = GeluMLPConfig().build(dim, norm=_NORM)
        self.scale = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        """B D h w -> B D h w."""
        grid = (maps.shape[2], maps.shape[3])
        pixels = self.conv(maps).permute(0, 2, 3, 1)  # B h w D
        branch = self.scale(self.mlp(self.norm(pixels), grid))
        return maps + self.drop_path(branch.permute(0, 3, 1, 2))  # B h w D -> B D h w


class ConvNeXt(Staged):
    """Patches of 4 x 4 pixels, then stages of blocks; all but the first stage start by merging 2 x 2 pixels."""

    config: ConvNeXtConfig

    def __init__(self, config: ConvNeXtConfig) -> None:
        super().__init__(config)
        first, *_, last = config.dims
        self.stem = nn.Sequential(nn.Conv2d(config.channels, first, 4, stride=4), OnTokens(_NORM.build(first)))
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            MapStage(
                (ConvNeXtBlock(dim, layer_scale=config.layer_scale, drop_path=next(rates)) for _ in range(depth)),
                downsample=None if before is None else _merging(before, dim),
            )
            for before, dim, depth in zip((None, *config.dims), config.dims, config.depths, strict=False)
        )
        self.norm = nn.Identity()
        self.pool_norm = LayerNormConfig(eps=config.pool_norm_eps).build(last)
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                trunc_normal_(module.weight, std=0.02)
                zeros_(module.bias)  # type: ignore[arg-type]

    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""
        return self.pool_norm(super().pooled(features))


def _merging(before: int, dim: int) -> nn.Module:
    """A norm, then a map of 2 x 2 pixels to one: B C H W -> B D h w."""
    return nn.Sequential(OnTokens(_NORM.build(before)), nn.Conv2d(before, dim, 2, stride=2))


_SIZES = {  # first width, depth of the third stage; the smaller ones have 2 instead of 3 blocks in the others
    "atto": (40, 6),
    "femto": (48, 6),
    "pico": (64, 6),
    "nano": (80, 8),
    "tiny": (96, 9),
    "small": (96, 27),
    "base": (128, 27),
    "large": (192, 27),
    "xlarge": (256, 27),
}


def _preset(size: str) -> Preset:
    dim, depth = _SIZES[size]
    own = size in ("atto", "femto", "pico", "nano")  # of timm, after arXiv:2301.00808
    outer = 2 if own else 3
    config = ConvNeXtConfig(dims=(dim, 2 * dim, 4 * dim, 8 * dim), depths=(outer, outer, depth, outer))
    torchvision = f"; torchvision convnext_{size}" if size in ("tiny", "small", "base", "large") else ""
    hf = "" if own else f"; hf facebook/convnext-{size}-*"
    return Preset(config, f"timm convnext_{size}.*{torchvision}{hf}")


CONVNEXT = Family(
    name="convnext",
    config=ConvNeXtConfig,
    module=ConvNeXt,
    paper="arXiv:2201.03545",
    idea="A ResNet with patches, large kernels, inverted bottlenecks, LayerNorm and GELU, as in transformers. "
    "Without attention it is as accurate, which shows that attention is not the only reason for their accuracy.",
    use="A strong convolutional backbone for dense prediction and for images of any size.",
    presets={f"convnext_{size}": _preset(size) for size in _SIZES},
)
