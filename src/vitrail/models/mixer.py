"""MLP-Mixer (Tolstikhin et al. 2021, arXiv:2105.01601): one MLP over tokens, one over channels, no attention."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from vitrail.config import Positive, Rate, apply
from vitrail.errors import ConfigError, InputError, Unsupported
from vitrail.layers.attention import Attention, AttentionConfig, Site
from vitrail.layers.block import Block
from vitrail.layers.downsample import PatchStem
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig
from vitrail.layers.residual import linear_ramp
from vitrail.layers.stage import TokenStage
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class MixerConfig(StagedConfig):
    """One stage; `token_ratio` is the hidden width of the MLP over tokens, relative to the token width."""

    patch: PatchConfig = LinearPatchConfig()
    token_ratio: Positive = 0.5
    mlp: MLPConfig = GeluMLPConfig()
    norm: NormConfig = LayerNormConfig()
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        """Raises an error for more than one stage and for dynamic_size."""
        super().__post_init__()
        if len(self.depths) != 1:
            raise ConfigError(f"depths has {len(self.depths)} entries; a Mixer has one stage and takes one")
        if self.dynamic_size:
            raise Unsupported("a Mixer has no dynamic_size: its MLPs over tokens have one weight for each patch")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of the only level for an image size, or an error that names a size that fits."""
        return (self.patch.grid(image_size),)


class Mixer(Staged):
    """Patches, then blocks that mix over tokens and over channels in turn."""

    config: MixerConfig

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        (dim,), (depth,), grid = config.dims, config.depths, config.grid(config.image_size)
        site = Site(dim=dim, num_heads=1, grid=grid, norm=config.norm, dropout=config.dropout)
        mixing = TokenMLPConfig(ratio=config.token_ratio)
        self.stem = PatchStem(config.channels, dim, patch=config.patch)
        blocks = [
            Block(site._replace(block=index), attention=mixing, mlp=config.mlp, drop_path=rate)
            for index, rate in enumerate(linear_ramp(config.drop_path, depth))
        ]
        self.stages = nn.ModuleList([TokenStage(blocks)])
        self.norm = config.norm.build(dim)
        self.head = self.new_head()
        initialise(self, "paper")

    def check(self, images: Tensor) -> Grid:
        """The grid of a batch that the model can take; otherwise a sentence on what came and what fits."""
        if getattr(images, "ndim", 0) == 4:
            self._refuse((images.shape[2], images.shape[3]))
        return super().check(images)

    def resize(self, image_size: int | tuple[int, int]) -> Self:
        """Raises InputError for another size: the weights over tokens cannot be resampled."""
        self._refuse(apply(self.config, {"image_size": image_size}).image_size)
        return self

    def _refuse(self, size: tuple[int, int]) -> None:
        own = self.config.image_size
        if size != own:
            raise InputError(
                f"images are {size[0]} x {size[1]}; this Mixer takes only {own[0]} x {own[1]}, since its MLPs over "
                f"tokens have one weight for each patch. Resize the images, or train a model with image_size={size}"
            )


@dataclass(frozen=True, kw_only=True)
class TokenMLPConfig(AttentionConfig):
    """An MLP over the tokens instead of attention; for this family only, since it depends on the grid."""

    ratio: Positive

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return TokenMLP(self, site)


class TokenMLP(Attention):
    """The same MLP over the tokens of every channel: B N D -> B N D."""

    def __init__(self, config: TokenMLPConfig, site: Site) -> None:
        super().__init__()
        hidden = max(int(site.dim * config.ratio), 1)
        num_tokens = site.grid[0] * site.grid[1]
        self.mlp = GeluMLPConfig(hidden=hidden).build(num_tokens, norm=site.norm, dropout=site.dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        mixed: Tensor = self.mlp(tokens.transpose(1, 2), grid)  # B D N
        return mixed.transpose(1, 2)

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """Raises Unsupported: there is no attention."""
        raise Unsupported("TokenMLP has no attention matrix: an MLP mixes the tokens")


def _mixer(dim: int, depth: int, patch: int, weights: str) -> Preset:
    return Preset(MixerConfig(dims=(dim,), depths=(depth,), patch=LinearPatchConfig(size=(patch, patch))), weights)


SIZES = {"s": (512, 8), "b": (768, 12), "l": (1024, 24)}

MIXER = Family(
    name="mixer",
    config=MixerConfig,
    module=Mixer,
    paper="arXiv:2105.01601",
    idea="An MLP over the tokens, the same for all channels, replaces attention. How patches are mixed is learned "
    "and does not depend on the image.",
    use="A baseline without attention; for large datasets and a fixed image size.",
    presets={
        f"mixer_{size}{patch}": _mixer(dim, depth, patch, f"timm mixer_{size}{patch}_224.*")
        for size, (dim, depth) in SIZES.items()
        for patch in (32, 16)
    },
)
