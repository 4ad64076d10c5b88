"""XCiT (El-Nouby et al. 2021, arXiv:2106.09681): cross-covariance attention and local patch interaction."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError
from vitrail.layers.attention import ClassAttention, Site, XCAConfig
from vitrail.layers.block import Block
from vitrail.layers.conv import coarsened, depthwise
from vitrail.layers.embed import halving_stem
from vitrail.layers.fourier import FourierConfig
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import LayerScale
from vitrail.layers.stage import State, TokenStage, to_map, to_tokens
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.backbone import Features
from vitrail.models.family import Family, Preset
from vitrail.models.initialise import initialise
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class XCiTConfig(StagedConfig):
    """One stage of XCA blocks, then `class_depth` blocks of class attention.

    `norm_all`: whether their second norm is applied to all tokens or only to the class token.
    """

    num_heads: tuple[Count, ...]
    patch_size: Literal[8, 16] = 16
    class_depth: Count = 2
    norm_all: bool = True
    layer_scale: Positive = 1.0
    dropout: Rate = 0.0
    dynamic_size: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError for more than one stage, and for a width that the stem cannot halve."""
        super().__post_init__()
        if len(self.depths) != 1:
            raise ConfigError(f"depths has {len(self.depths)} entries; an XCiT has one stage and takes one")
        if self.dims[0] % (self.patch_size // 2):
            raise ConfigError(f"dims is {self.dims[0]}; it must be divisible by {self.patch_size // 2}")

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of the only level, for any image size: the stem pads."""
        return (coarsened(image_size, self.patch_size),)


class XCiT(Staged):
    """A stem of convolutions, blocks with a cost linear in the number of patches, a class token at the end."""

    config: XCiTConfig

    def __init__(self, config: XCiTConfig) -> None:
        super().__init__(config)
        (dim,), (num_heads,) = config.dims, config.num_heads
        grid = config.grid(config.image_size)
        site = Site(dim=dim, num_heads=num_heads, grid=grid, dropout=config.dropout)
        halvings = config.patch_size.bit_length() - 1
        self.stem = halving_stem(config.channels, dim, halvings, activation=nn.GELU)
        blocks = [
            XCABlock(site._replace(block=index), layer_scale=config.layer_scale, drop_path=config.drop_path)
            for index in range(config.depths[0])
        ]
        self.stages = nn.ModuleList([XCiTStage(blocks, site, config)])
        self.norm = site.norm.build(dim)
        self.head = self.new_head()
        initialise(self, "trunc_normal")

    def pooled(self, features: Features) -> Tensor:
        """Features -> the class token B D."""
        return features.prefix[:, 0]


class XCiTStage(TokenStage):
    """Blocks over patches; the class token is added at the end: B D h w -> B D h w and B 1 D."""

    def __init__(self, blocks: list["XCABlock"], site: Site, config: XCiTConfig) -> None:
        position = FourierConfig().build(site.dim, grid=site.grid, num_prefix=0)
        super().__init__(blocks, position=position)
        self.class_token = PrefixTokens(site.dim, class_token=True)
        self.class_blocks = nn.ModuleList(
            ClassBlock(site, layer_scale=config.layer_scale, norm_all=config.norm_all)
            for _ in range(config.class_depth)
        )

    def leave(self, state: State) -> tuple[Tensor, Tensor]:
        """The map B D h w and the class token B 1 D."""
        tokens = self.class_token(state.x)
        for block in self.class_blocks:
            tokens = block(tokens, state.grid)
        return self.level(State(tokens, state.grid))


class XCABlock(Block):
    """Cross-covariance attention, local patch interaction, MLP, each on a residual branch: B N D -> B N D."""

    def __init__(self, site: Site, *, layer_scale: float, drop_path: float) -> None:
        super().__init__(site, attention=XCAConfig(), mlp=GeluMLPConfig(), layer_scale=layer_scale, drop_path=drop_path)
        self.norm3 = site.norm.build(site.dim)
        self.local = LocalPatchInteraction(site.dim)
        self.scale3 = LayerScale(site.dim, layer_scale)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        drop = self.drop_path
        tokens = tokens + drop(self.scale1(self.attention(self.norm1(tokens), grid)))
        tokens = tokens + drop(self.scale3(self.local(self.norm3(tokens), grid)))
        return tokens + drop(self.scale2(self.mlp(self.norm2(tokens), grid)))


class LocalPatchInteraction(nn.Module):
    """Two depth-wise convolutions, since XCA does not mix neighbouring patches: B N D -> B N D."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = depthwise(dim)
        self.norm = nn.BatchNorm2d(dim)
        self.conv2 = depthwise(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        return to_tokens(self.conv2(self.norm(F.gelu(self.conv1(to_map(tokens, grid))))))


class ClassBlock(nn.Module):
    """Class attention and an MLP for the class token: B 1+N D -> B 1+N D (CaiT, arXiv:2103.17239).

    As in the authors' code, the normalised patches are added to the patches in the residual connection.
    """

    def __init__(self, site: Site, *, layer_scale: float, norm_all: bool) -> None:
        super().__init__()
        self.norm_all = norm_all
        self.norm1 = site.norm.build(site.dim)
        self.attention = ClassAttention(site)
        self.scale1 = LayerScale(site.dim, layer_scale)
        self.norm2 = site.norm.build(site.dim)
        self.mlp = GeluMLPConfig().build(site.dim, norm=site.norm, dropout=site.dropout)
        self.scale2 = LayerScale(site.dim, layer_scale)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B 1+N D -> B 1+N D."""
        tokens = tokens + self.scale1(self.attention(self.norm1(tokens), grid))
        normed = self.norm2(tokens)
        tokens = normed if self.norm_all else torch.cat([normed[:, :1], tokens[:, 1:]], dim=1)
        branch = self.scale2(self.mlp(tokens[:, :1], (1, 1)))  # B 1 D
        return tokens + torch.cat([branch, tokens[:, 1:]], dim=1)


def _size(name: str, depth: int, patch_size: Literal[8, 16]) -> Preset:
    dim, num_heads = {"nano": (128, 4), "tiny": (192, 4), "small": (384, 8)}[name]
    config = XCiTConfig(
        dims=(dim,),
        depths=(depth,),
        num_heads=(num_heads,),
        patch_size=patch_size,
        norm_all=name != "nano",
        layer_scale=1.0 if depth == 12 else 1e-5,
    )
    return Preset(config, weights=f"timm xcit_{name}_{depth}_p{patch_size}_*")


XCIT = Family(
    name="xcit",
    config=XCiTConfig,
    module=XCiT,
    paper="arXiv:2106.09681",
    idea="Transposed attention: channels attend to channels, at a cost linear in the number of patches. Small "
    "depth-wise convolutions mix neighbouring patches, and a class token attends to the result at the end.",
    use="Large images and small patches, for which attention over all pairs of patches costs too much.",
    presets={
        f"xcit_{name}_{depth}_p{patch_size}": _size(name, depth, patch_size)
        for patch_size in (16, 8)
        for name, depth in (("nano", 12), ("tiny", 12), ("tiny", 24), ("small", 12), ("small", 24))
    },
)
