"""LeViT (Graham et al. 2021, arXiv:2104.01136): a transformer with the structure of a CNN, for fast inference."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.layers.attention import BiasedConfig, Site, SubsampledAttention
from vitrail.layers.conv import coarsened
from vitrail.layers.embed import halving_stem
from vitrail.layers.linear_norm import LinearNorm, NormLinear
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath, linear_ramp
from vitrail.layers.stage import TokenStage, to_map, to_tokens
from vitrail.models.distilled import Distilled
from vitrail.models.family import Family, Preset
from vitrail.models.fused import FusedConfig, FusedStaged
from vitrail.models.initialise import initialise


@dataclass(frozen=True, kw_only=True)
class LeViTConfig(FusedConfig):
    """The width of queries and keys is `head_dim`, that of values `value_ratio` times `head_dim`.

    `distilled` adds a second head for distillation; the output is the mean of both heads.
    """

    num_heads: tuple[Count, ...]
    head_dim: Count
    value_ratio: Positive = 2.0
    mlp_ratio: Positive = 2.0
    distilled: bool = True

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse: strides 16, 32, 64, rounded up."""
        return tuple(coarsened(image_size, 16 << stage) for stage in range(len(self.depths)))


class NormMLP(nn.Module):
    """Linear, hard-swish, linear, each with a batch norm: B N D -> B N D."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = LinearNorm(dim, hidden)
        self.activation = nn.Hardswish()
        self.fc2 = LinearNorm(hidden, dim, gain=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """B N D -> B N D."""
        return self.fc2(self.activation(self.fc1(tokens)))


class LeViTBlock(nn.Module):
    """Attention and MLP, each on a residual branch that starts at zero: B N D -> B N D."""

    def __init__(self, site: Site, config: LeViTConfig, *, drop_path: float) -> None:
        super().__init__()
        self.attention = BiasedConfig(head_dim=config.head_dim, value_ratio=config.value_ratio).build(site)
        self.mlp = NormMLP(site.dim, int(site.dim * config.mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        tokens = tokens + self.drop_path(self.attention(tokens, grid))
        return tokens + self.drop_path(self.mlp(tokens))


class Downsample(nn.Module):
    """Attention with a quarter of the queries, then a residual MLP: B C h w -> B D h/2 w/2, rounded up."""

    def __init__(self, config: LeViTConfig, stage: int, *, grid: Grid, drop_path: float) -> None:
        super().__init__()
        channels, dim, head_dim = config.dims[stage - 1], config.dims[stage], config.head_dim
        heads = max(channels // head_dim, 1)
        self.attention = SubsampledAttention(channels, dim, grid=grid, num_heads=heads, head_dim=head_dim)
        self.mlp = NormMLP(dim, 2 * dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, maps: Tensor) -> Tensor:
        """B C h w -> B D h/2 w/2."""
        maps = self.attention(maps)
        tokens = to_tokens(maps)
        return to_map(tokens + self.drop_path(self.mlp(tokens)), (maps.shape[2], maps.shape[3]))


class LeViT(Distilled, FusedStaged):
    """Four convolutions, then stages of biased attention; `fuse` folds all batch norms."""

    config: LeViTConfig

    def __init__(self, config: LeViTConfig) -> None:
        super().__init__(config)
        self.stem = halving_stem(config.channels, config.dims[0], 4, activation=nn.Hardswish)
        grids, rates = config.grids(config.image_size), linear_ramp(config.drop_path, sum(config.depths))
        self.stages = nn.ModuleList()
        for stage, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
            before = sum(config.depths[:stage])
            site = Site(dim=dim, num_heads=config.num_heads[stage], grid=grids[stage])
            blocks = [LeViTBlock(site, config, drop_path=rate) for rate in rates[before : before + depth]]
            down = None
            if stage > 0:
                down = Downsample(config, stage, grid=grids[stage - 1], drop_path=rates[before])
            self.stages.append(TokenStage(blocks, downsample=down))
        self.norm = nn.Identity()
        self.head = self.new_head()
        self.distillation_head = self.new_head() if config.distilled else None
        self.settle()
        for name in ("head", "distillation_head") if config.distilled else ("head",):
            initialise(self.get_submodule(name), "trunc_normal", name=name)

    @property
    def levels(self) -> Sequence[nn.Module]:
        """The modules of each level: the blocks of a stage, and the attention before the next stage."""
        after = [*(stage.get_submodule("downsample") for stage in self.stages[1:]), nn.Identity()]
        return tuple(
            nn.ModuleList([stage.get_submodule("blocks"), down]) for stage, down in zip(self.stages, after, strict=True)
        )

    def new_head(self) -> nn.Module:
        """A new head with a batch norm, or without it in a fused model; the identity if there are no classes."""
        if not self.config.num_classes:
            return nn.Identity()
        kind = nn.Linear if self.config.fused else NormLinear
        return kind(self.width, self.config.num_classes)


def _size(name: str, dims: tuple[int, ...], head_dim: int, num_heads: tuple[int, ...], *depths: int) -> Preset:
    config = LeViTConfig(dims=dims, head_dim=head_dim, num_heads=num_heads, depths=depths or (4, 4, 4))
    return Preset(config, f"timm levit_{name.lower()}.fb_dist_in1k; hf facebook/levit-{name}")


LEVIT = Family(
    name="levit",
    config=LeViTConfig,
    module=LeViT,
    paper="arXiv:2104.01136",
    idea="Convolutions reduce the image by 16 before the first attention, and attention itself halves the map between "
    "stages. A learned bias for each distance replaces positions; batch norms fold into linear maps.",
    use="Fast inference on CPUs and phones at a fixed image size; call `model.fuse()` before export.",
    presets={
        "levit_128s": _size("128S", (128, 256, 384), 16, (4, 6, 8), 2, 3, 4),
        "levit_128": _size("128", (128, 256, 384), 16, (4, 8, 12)),
        "levit_192": _size("192", (192, 288, 384), 32, (3, 5, 6)),
        "levit_256": _size("256", (256, 384, 512), 32, (4, 6, 8)),
        "levit_384": _size("384", (384, 512, 768), 32, (6, 9, 12)),
    },
)
