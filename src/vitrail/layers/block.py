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

    The norm stands before each branch ("pre": x + f(norm x), arXiv:2010.11929), after the sum ("post":
    norm(x + f x), arXiv:1706.03762) or at the branch's end ("res_post": x + norm(f x), arXiv:2111.09883).
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
        drop = self.drop_path
        if self.norm_placement == "pre":
            tokens = tokens + drop(self.scale1(self.attention(self.norm1(tokens), grid)))
            return tokens + drop(self.scale2(self.mlp(self.norm2(tokens), grid)))
        if self.norm_placement == "post":
            tokens = self.norm1(tokens + drop(self.scale1(self.attention(tokens, grid))))
            return self.norm2(tokens + drop(self.scale2(self.mlp(tokens, grid))))
        tokens = tokens + drop(self.scale1(self.norm1(self.attention(tokens, grid))))
        return tokens + drop(self.scale2(self.norm2(self.mlp(tokens, grid))))
