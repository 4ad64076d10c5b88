"""PVT (Wang et al. 2021, arXiv:2102.12122) and PVT v2 (arXiv:2106.13797): spatial-reduction attention in stages."""

from dataclasses import dataclass, replace

from torch import nn

from vitrail.config import Count, Positive
from vitrail.layers.attention import ReductionConfig
from vitrail.layers.block import Block
from vitrail.layers.conv_mlp import ConvMLPConfig
from vitrail.layers.embed import Window
from vitrail.layers.mlp import MLPConfig
from vitrail.layers.patch import Grid, patch_grid
from vitrail.layers.pool import ClassPool
from vitrail.layers.position import LearnedPosition
from vitrail.layers.stage import TokenStage
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise, initialise_convolutions
from vitrail.models.pyramid import Pyramid, PyramidConfig


@dataclass(frozen=True, kw_only=True)
class CutReductionConfig(ReductionConfig):
    """Reduction that ignores the rows and columns beyond a multiple of `ratio`, as in published models."""

    cut = True


@dataclass(frozen=True, kw_only=True)
class ReducedConfig(PyramidConfig):
    """The options of both versions: `reductions` is the reduction of the map of keys in each direction.

    `embed_norm` is also the norm after the convolution that reduces keys.
    """

    mlp_ratios: tuple[Positive, ...] = (8.0, 8.0, 4.0, 4.0)
    reductions: tuple[Count, ...] = (8, 4, 2, 1)

    def attention(self, stage: int) -> ReductionConfig:
        """The attention of a stage."""
        return CutReductionConfig(ratio=self.reductions[stage], norm=self.embed_norm)


@dataclass(frozen=True, kw_only=True)
class PVTConfig(ReducedConfig):
    """Version 1: non-overlapping patches, learned positions in each stage, a class token in the last stage."""

    def windows(self) -> list[Window]:
        """The embedding of each stage: 4 x 4 pixels, then 2 x 2 tokens of the previous stage."""
        return [Window(4, 4)] + [Window(2, 2)] * (len(self.depths) - 1)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, or an error that names a size that fits."""
        step = 2 << len(self.depths)
        height, width = patch_grid(image_size, (step, step), (step, step))
        return tuple((height << finer, width << finer) for finer in reversed(range(len(self.depths))))


@dataclass(frozen=True, kw_only=True)
class PVTv2Config(ReducedConfig):
    """Version 2: overlapping patches, convolutions in the MLPs instead of positions, mean pooling.

    `linear` reduces keys by average pooling to 7 x 7 instead of a convolution; `reductions` is not used then.
    """

    dynamic_size: bool = True
    linear: bool = False

    def windows(self) -> list[Window]:
        """What one token of each stage is made from: 7 x 7 pixels, then 3 x 3 tokens of the stage before."""
        return [Window(7, 4, 3)] + [Window(3, 2, 1)] * (len(self.depths) - 1)

    def mlp(self, stage: int) -> MLPConfig:
        """The feed-forward layer of a stage."""
        return ConvMLPConfig(ratio=self.mlp_ratios[stage], rectified=self.linear)

    def attention(self, stage: int) -> ReductionConfig:
        """The attention of a stage."""
        return replace(super().attention(stage), linear=self.linear)


class PVT(Pyramid):
    """Learned positions in each stage; a class token in the last stage."""

    config: PVTConfig
    class_token = True

    def __init__(self, config: PVTConfig) -> None:
        super().__init__(config)
        self.pool = ClassPool()
        initialise(self, "trunc_normal")

    def new_stage(self, stage: int, blocks: list[Block], grid: Grid, downsample: nn.Module | None) -> TokenStage:
        """The stage for these blocks."""
        prefix = self.prefix(stage)
        position = LearnedPosition(self.config.dims[stage], grid=grid, num_prefix=prefix.count if prefix else 0)
        return TokenStage(blocks, downsample=downsample, prefix=prefix, position=position)


class PVTv2(Pyramid):
    """A norm at the end of each stage."""

    config: PVTv2Config

    def __init__(self, config: PVTv2Config) -> None:
        super().__init__(config)
        initialise(self, "trunc_normal")
        initialise_convolutions(self)

    def new_stage(self, stage: int, blocks: list[Block], grid: Grid, downsample: nn.Module | None) -> TokenStage:
        """The stage for these blocks; the norm of the last stage is that of the model."""
        norm = None if self.is_last(stage) else self.config.norm.build(self.config.dims[stage])
        return TokenStage(blocks, downsample=downsample, norm=norm)


PVT_FAMILY = Family(
    name="pvt",
    config=PVTConfig,
    module=PVT,
    paper="arXiv:2102.12122",
    idea="A transformer in four stages with fewer and wider tokens in each, as in a CNN. Keys and values come from a "
    "map that a convolution reduced, which keeps attention on fine maps affordable.",
    use="Dense tasks (detection, segmentation) with a simple pyramid; PVT v2 is more accurate at the same cost.",
    presets={
        f"pvt_{name}": Preset(
            PVTConfig(dims=(64, 128, 320, 512), depths=depths, num_heads=(1, 2, 5, 8)),
            f"hf Zetatech/pvt-{name}-224",
        )
        for name, depths in {
            "tiny": (2, 2, 2, 2),
            "small": (3, 4, 6, 3),
            "medium": (3, 4, 18, 3),
            "large": (3, 8, 27, 3),
        }.items()
    },
)


def _v2(name: str, depths: tuple[int, ...], first: float = 8.0, *, linear: bool = False) -> Preset:
    """A size of version 2; `first` is the MLP ratio of the first two stages."""
    dims, heads = ((32, 64, 160, 256), (1, 2, 5, 8)) if name == "b0" else ((64, 128, 320, 512), (1, 2, 5, 8))
    ratios = (first, first, 4.0, 4.0)
    config = PVTv2Config(dims=dims, depths=depths, num_heads=heads, mlp_ratios=ratios, linear=linear)
    return Preset(config, f"timm pvt_v2_{name}.in1k; hf OpenGVLab/pvt_v2_{name}")


PVT_V2_FAMILY = Family(
    name="pvt_v2",
    config=PVTv2Config,
    module=PVTv2,
    paper="arXiv:2106.13797",
    idea="PVT with overlapping patches and a small convolution in each MLP, whose zero padding encodes positions. It "
    "needs no position embeddings and takes images of any size.",
    use="A light pyramid for dense tasks and varying image sizes; b2_linear for large images.",
    presets={
        "pvt_v2_b0": _v2("b0", (2, 2, 2, 2)),
        "pvt_v2_b1": _v2("b1", (2, 2, 2, 2)),
        "pvt_v2_b2": _v2("b2", (3, 4, 6, 3)),
        "pvt_v2_b3": _v2("b3", (3, 4, 18, 3)),
        "pvt_v2_b4": _v2("b4", (3, 8, 27, 3)),
        "pvt_v2_b5": _v2("b5", (3, 6, 40, 3), 4.0),
        "pvt_v2_b2_li": _v2("b2_li", (3, 4, 6, 3), linear=True),
    },
)
