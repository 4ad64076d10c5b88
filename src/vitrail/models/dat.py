"""DAT: window attention in the early stages, deformable attention in the late ones (arXiv:2201.00520)."""

from dataclasses import dataclass

from torch import nn
from torch.nn.init import trunc_normal_

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError
from vitrail.layers.attention import Attention, AttentionConfig, DeformableConfig, Site, WindowConfig
from vitrail.layers.attention.window import TableBias, WindowAttention, Windows
from vitrail.layers.block import Block
from vitrail.layers.downsample import PatchStem
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, patch_grid
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import TokenStage
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class DATConfig(StagedConfig):
    """Widths, blocks and heads of each stage; `deformable` selects stages with deformable attention.

    Blocks with windows alternate with blocks with shifted windows or, in a deformable stage, with deformable attention.
    `group_heads` heads share their points, which a network with convolutions of size `kernels` moves by up to
    `reach` / 2 patches.
    """

    num_heads: tuple[Count, ...]
    deformable: tuple[bool, ...] = (False, False, True, True)
    kernels: tuple[Count, ...] = (9, 7, 5, 3)
    window: tuple[Count, Count] = (7, 7)
    group_heads: Count = 4
    reach: Positive = 2.0
    mlp: MLPConfig = GeluMLPConfig()
    norm: NormConfig = LayerNormConfig(eps=1e-5)
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError if a list does not have one entry per stage, or heads do not divide into groups."""
        super().__post_init__()
        for name in ("deformable", "kernels"):
            if len(getattr(self, name)) != len(self.depths):
                raise ConfigError(f"{name} has {len(getattr(self, name))} entries, but depths has {len(self.depths)}")
        for heads, deformable in zip(self.num_heads, self.deformable, strict=True):
            if deformable and heads % min(heads, self.group_heads):
                raise ConfigError(f"{heads} heads are not divisible by group_heads {self.group_heads}")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse, or an error that names a size that fits."""
        coarsest = 2 << len(self.depths)
        rows, columns = patch_grid(image_size, (coarsest, coarsest), (coarsest, coarsest))
        return tuple((rows << finer, columns << finer) for finer in reversed(range(len(self.depths))))

    def attention(self, level: int, block: int) -> AttentionConfig:
        """The attention of a block of a stage."""
        if not self.deformable[level]:
            return WideShiftConfig(size=self.window)
        if block % 2 == 0:
            return WindowConfig(size=self.window, shift=False)
        groups = max(self.num_heads[level] // self.group_heads, 1)
        return DeformableConfig(groups=groups, kernel=self.kernels[level], reach=self.reach)


class DAT(Staged):
    """Patches of 4 pixels; all stages but the first start by merging 2 x 2 patches with a linear map."""

    config: DATConfig

    def __init__(self, config: DATConfig) -> None:
        super().__init__(config)
        self.stem = PatchStem(config.channels, config.dims[0], patch=LinearPatchConfig(size=(4, 4)), norm=config.norm)
        rates = iter(linear_ramp(config.drop_path, sum(config.depths)))
        self.stages = nn.ModuleList(
            self._stage(level, [next(rates) for _ in range(depth)]) for level, depth in enumerate(config.depths)
        )
        self.norm = config.norm.build(config.dims[-1])
        self.head = self.new_head()
        # As in the authors' code, all other layers keep torch's default initialisation.
        initialise(self.head, "trunc_normal", name="head")
        for module in self.modules():
            if isinstance(module, TableBias):
                trunc_normal_(module.table, std=0.01)

    def _stage(self, level: int, rates: list[float]) -> TokenStage:
        config = self.config
        grid = config.grids(config.image_size)[level]
        site = Site(config.dims[level], config.num_heads[level], grid, norm=config.norm, dropout=config.dropout)
        blocks = [
            Block(site._replace(block=index), attention=config.attention(level, index), mlp=config.mlp, drop_path=rate)
            for index, rate in enumerate(rates)
        ]
        if level == 0:
            return TokenStage(blocks)
        four = LinearPatchConfig(size=(2, 2), bias=False)
        return TokenStage(
            blocks, downsample=PatchStem(config.dims[level - 1], config.dims[level], patch=four, norm=config.norm)
        )


@dataclass(frozen=True, kw_only=True)
class WideShiftConfig(WindowConfig):
    """Windows that shift by half of their size rounded up: 7 by 4, where Swin's shift by 3."""

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return WideShiftAttention(self, site)


class WideShiftAttention(WindowAttention):
    """B P+N D -> B P+N D."""

    def windows(self, grid: Grid) -> Windows:
        """The windows of this layer on a grid."""
        windows = super().windows(grid)
        (rows, columns), (down, right) = windows.size, windows.shift
        return windows._replace(shift=(rows - down if down else 0, columns - right if right else 0))


def _size(name: str, dim: int, depth: int, *, heads: int, window: int = 7, pixels: int = 224) -> Preset:
    return Preset(
        DATConfig(
            image_size=(pixels, pixels),
            dims=(dim, 2 * dim, 4 * dim, 8 * dim),
            depths=(2, 2, depth, 2),
            num_heads=(heads, 2 * heads, 4 * heads, 8 * heads),
            window=(window, window),
        ),
        weights=f"authors dat_{name}_in1k_{pixels}",
    )


DAT_FAMILY = Family(
    name="dat",
    config=DATConfig,
    module=DAT,
    paper="arXiv:2201.00520",
    idea="Keys are sampled at points that a small network moves to the important regions of the image; all queries "
    "share them. The first stages, which would need too many points, use windows instead.",
    use="When objects vary in size and shape, and detection or segmentation follows; windows alone are faster.",
    presets={
        "dat_tiny": _size("tiny", 96, 6, heads=3),
        "dat_small": _size("small", 96, 18, heads=3),
        "dat_base": _size("base", 128, 18, heads=4),
        "dat_base_window12": _size("base", 128, 18, heads=4, window=12, pixels=384),
    },
)
