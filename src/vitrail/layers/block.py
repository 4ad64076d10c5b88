"""A transformer block: attention and MLP, each on a residual branch."""

from typing import Literal

from torch import Tensor, nn

from vitrail.layers.attention import AttentionConfig, Site
from vitrail.layers.mlp import MLPConfig
from vitrail.layers.patch import Grid
from vitrail.layers.residual import DropPath, LayerScale

NormPlacement = Literal["pre", "post", "res_post"]


class Block(nn.Module):
    """B P+N D -> B P+N D.

    The norm is before each branch ("pre": x + f(norm x), arXiv:2010.11929), after the sum ("post":
    norm(x + f x), arXiv:1706.03762) or at the end of the branch ("res_post": x + norm(f x), arXiv:2111.09883).
    """

    def __init__(
        self,
        site: Site,
        *,
        attention: AttentionConfig,
        mlp: MLPConfig,
        norm_placement: NormPlacement = "pre",
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm_placement = norm_placement
        self.norm1 = site.norm.build(site.dim)
        self.attention = attention.build(site)
        self.scale1 = nn.Identity() if layer_scale is None else LayerScale(site.dim, layer_scale)
        self.norm2 = site.norm.build(site.dim)
        self.mlp = mlp.build(site.dim, norm=site.norm, dropout=site.dropout)
        self.scale2 = nn.Identity() if layer_scale is None else LayerScale(site.dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        return self.feed(self.mix(tokens, self.attention(self.read(tokens), grid)), grid)

    def read(self, tokens: Tensor) -> Tensor:
        """The input of attention: B P+N D -> B P+N D."""
        return self.norm1(tokens) if self.norm_placement == "pre" else tokens

    def mix(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        """Adds the output of attention to the tokens: B P+N D each."""
        if self.norm_placement == "res_post":
            mixed = self.norm1(mixed)
        tokens = tokens + self.drop_path(self.scale1(mixed))
        return self.norm1(tokens) if self.norm_placement == "post" else tokens

    def feed(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The MLP with its residual connection: B P+N D -> B P+N D."""
        fed = self.mlp(self.norm2(tokens) if self.norm_placement == "pre" else tokens, grid)
        if self.norm_placement == "res_post":
            fed = self.norm2(fed)
        tokens = tokens + self.drop_path(self.scale2(fed))
        return self.norm2(tokens) if self.norm_placement == "post" else tokens
