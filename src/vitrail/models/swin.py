"""Swin: attention within shifted windows, in stages (Liu et al. 2021, arXiv:2103.14030)."""

from dataclasses import dataclass

from torch import nn
from torch.nn.init import zeros_

from vitrail.config import Count, Rate
from vitrail.layers.attention import AttentionConfig, Site, WindowConfig
from vitrail.layers.block import Block, NormPlacement
from vitrail.layers.conv import coarsened
from vitrail.layers.downsample import PatchMerge, PatchStem
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import TokenStage
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class SwinConfig(StagedConfig):
    """Widths, blocks and heads of each stage, and the layers of a block.

    On grids that are not divisible by the window, padding is masked. Models that were loaded from weights of timm or
    Hugging Face do not mask it, as there: see `attention.padding`.
    """

    num_heads: tuple[Count, ...]
    dynamic_size: bool = True
    patch: PatchConfig = LinearPatchConfig(size=(4, 4))
    attention: AttentionConfig = WindowConfig()
    mlp: MLPConfig = GeluMLPConfig()
    norm: NormConfig = LayerNormConfig(eps=1e-5)
    norm_placement: NormPlacement = "pre"
    dropout: Rate = 0.0

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse, or an error that names a size that fits."""
        first = self.patch.grid(image_size)
        return tuple(coarsened(first, 2**level) for level in range(len(self.depths)))

    def attention_at(self, level: int) -> AttentionConfig:
        """The attention of one stage."""
        return self.attention


class Swin(Staged):
    """Patches of 4 pixels; all stages but the first start by merging 2 x 2 patches."""

    config: SwinConfig

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.stem = PatchStem(config.channels, config.dims[0], patch=config.patch, norm=config.norm)
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            self._stage(level, [next(rates) for _ in range(depth)]) for level, depth in enumerate(config.depths)
        )
        self.norm = config.norm.build(config.dims[-1])
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        if config.norm_placement == "res_post":  # branches start at zero, for the stability of the largest models
            for name, parameter in self.blocks.named_parameters():
                if name.split(".")[1] in ("norm1", "norm2"):
                    zeros_(parameter)

    def _stage(self, level: int, rates: list[float]) -> TokenStage:
        config, dim = self.config, self.config.dims[level]
        grid = config.grids(config.image_size)[level]
        site = Site(dim, config.num_heads[level], grid, norm=config.norm, dropout=config.dropout)
        blocks = [
            Block(
                site._replace(block=index),
                attention=config.attention_at(level),
                mlp=config.mlp,
                norm_placement=config.norm_placement,
                drop_path=rate,
            )
            for index, rate in enumerate(rates)
        ]
        if level == 0:
            return TokenStage(blocks)
        norm_first = config.norm_placement == "pre"
        merge = PatchMerge(config.dims[level - 1], dim, norm=config.norm, norm_first=norm_first)
        return TokenStage(blocks, downsample=merge)


def _size(name: str, dim: int, depths: tuple[int, ...], *, heads: int, window: int = 7, pixels: int = 224) -> Preset:
    return Preset(
        SwinConfig(
            image_size=(pixels, pixels),
            dims=(dim, 2 * dim, 4 * dim, 8 * dim),
            depths=depths,
            num_heads=(heads, 2 * heads, 4 * heads, 8 * heads),
            attention=WindowConfig(size=(window, window)),
        ),
        weights=f"timm swin_{name}_patch4_window{window}_{pixels}.*; "
        f"hf microsoft/swin-{name}-patch4-window{window}-{pixels}",
    )


SWIN = Family(
    name="swin",
    config=SwinConfig,
    module=Swin,
    paper="arXiv:2103.14030",
    idea="Patches attend within windows, so that the cost is linear in the number of patches. Windows shift by half in "
    "every second block, which connects neighbouring windows.",
    use="A feature pyramid for detection and segmentation, and images larger than 224 pixels.",
    presets={
        "swin_tiny_patch4_window7": _size("tiny", 96, (2, 2, 6, 2), heads=3),
        "swin_small_patch4_window7": _size("small", 96, (2, 2, 18, 2), heads=3),
        "swin_base_patch4_window7": _size("base", 128, (2, 2, 18, 2), heads=4),
        "swin_base_patch4_window12": _size("base", 128, (2, 2, 18, 2), heads=4, window=12, pixels=384),
    },
)
