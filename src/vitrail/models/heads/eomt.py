"""EoMT: a plain ViT as a mask transformer, with queries among its tokens (Kerssies et al. 2025, arXiv:2503.19108)."""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Rate
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.attention.softmax import SoftmaxAttention
from vitrail.layers.block import Block
from vitrail.layers.mlp import GeluMLPConfig, SwiGLUConfig
from vitrail.layers.patch import Grid
from vitrail.layers.position import AddedPositionConfig
from vitrail.layers.stage import OnTokens
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.segmenter import Segmenter, SegmenterConfig
from vitrail.models.vit import ViT


@dataclass(frozen=True, kw_only=True)
class EomtConfig(SegmenterConfig, kind="eomt"):
    """Queries join the tokens in the last `blocks` blocks; each gives a class and a mask.

    In training the share `masked` of queries attends to the pixels of its own mask alone, drawn anew in each block;
    the paper lowers this share to 0 in the course of training. In use there is no masking.
    """

    queries: Count = 100
    blocks: Count = 4
    upscale: CountFromZero = 2  # how often the resolution of the patches is doubled
    masked: Rate = 0.5

    def build(self, backbone: Backbone, num_classes: int) -> "Eomt":
        """The head for a plain ViT."""
        return Eomt(self, _plain(backbone), num_classes)


class MaskQueries(NamedTuple):
    """What queries say after some blocks."""

    classes: Tensor  # L B Q K+1: logits, the last of which means "no object"
    masks: Tensor  # L B Q h w: logits


class Upscale(nn.Sequential):
    """Twice the resolution: B D h w -> B D 2h 2w."""

    def __init__(self, dim: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(dim, dim, 2, stride=2),
            nn.GELU(),
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False),
            OnTokens(nn.LayerNorm(dim, eps=1e-6)),
        )


class Eomt(Segmenter):
    """Learned queries, a classifier, an MLP of the queries and an upscaled map of the patches."""

    def __init__(self, config: EomtConfig, backbone: ViT, num_classes: int) -> None:
        super().__init__()
        dim, depth = backbone.config.dim, len(backbone.blocks)
        if config.blocks > depth:
            raise ConfigError(
                f"the queries of eomt join the last {config.blocks} blocks, but the model has only {depth}; "
                f"set task.head.blocks to at most {depth}"
            )
        self.config, self.start = config, depth - config.blocks
        self.queries = nn.Parameter(torch.randn(config.queries, dim))
        self.classifier = nn.Linear(dim, num_classes + 1)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.upscale = nn.Sequential(*(Upscale(dim) for _ in range(config.upscale)))

    def read(self, backbone: Backbone, images: Tensor) -> Features:
        """The tokens of the last block; queries are the first prefix tokens."""
        return self._run(_plain(backbone), images)[-1]

    def forward(self, features: Features) -> Tensor:
        """Logarithms of how much each class claims each pixel, over all queries: B K h w."""
        classes, masks = self.predict(features)
        claims = torch.einsum("bqk,bqhw->bkhw", classes.softmax(dim=-1)[..., :-1], masks.sigmoid())
        return claims.clamp(min=1e-6).log()

    def layers(self, backbone: Backbone, images: Tensor) -> MaskQueries:
        """What queries say before each of the last blocks and at the end: for training."""
        found = [self.predict(one) for one in self._run(_plain(backbone), images, every=True)]
        return MaskQueries(*(torch.stack(part) for part in zip(*found, strict=True)))

    def predict(self, features: Features) -> tuple[Tensor, Tensor]:
        """Class logits B Q K+1 and mask logits B Q h w of normed tokens."""
        queries = features.prefix[:, : self.config.queries]
        maps = self.upscale(features.pyramid[-1])
        return self.classifier(queries), torch.einsum("bqd,bdhw->bqhw", self.mlp(queries), maps)

    def _run(self, backbone: ViT, images: Tensor, *, every: bool = False) -> list[Features]:
        """Normed features at the end, or also before each block that has queries."""
        tokens, grid = backbone.embed(images)
        found: list[Features] = []
        for index, block in enumerate(backbone.blocks):
            if index == self.start:
                queries = self.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
                tokens = torch.cat([queries, tokens], dim=1)  # B Q+P+N D
            mask = None
            if index >= self.start and every:
                found.append(Features.from_tokens(backbone.norm(tokens), grid))
                mask = self._mask(found[-1]) if self.training and self.config.masked else None
            tokens = backbone.run(block, tokens, grid) if mask is None else _masked(block, tokens, grid, mask)
        return [*found, Features.from_tokens(backbone.norm(tokens), grid)]

    @torch.no_grad()
    def _mask(self, features: Features) -> Tensor:
        """Where tokens may attend, B 1 T T: some queries to the patches of their own mask alone."""
        _, masks = self.predict(features)
        own = F.interpolate(masks, size=features.grid, mode="bilinear").flatten(2) > 0  # B Q N
        free = torch.rand(own.shape[:2], device=own.device) >= self.config.masked
        count, patches = own.shape[1], own.shape[2]
        total = features.prefix.shape[1] + patches
        allowed = torch.ones(own.shape[0], total, total, dtype=torch.bool, device=own.device)
        allowed[:, :count, total - patches :] = own | free[..., None]
        return allowed[:, None]


def _masked(module: nn.Module, tokens: Tensor, grid: Grid, mask: Tensor) -> Tensor:
    """A block whose attention is masked: B T D, B 1 T T -> B T D."""
    block = cast("Block", module)
    attention = cast("SoftmaxAttention", block.attention)
    mixed = attention.mix(*attention.heads(block.read(tokens)), mask)
    return block.feed(block.mix(tokens, mixed), grid)


def _plain(backbone: Backbone) -> ViT:
    """The model, if queries can join its tokens; else a sentence on why not."""
    if not isinstance(backbone, ViT) or type(backbone).features is not ViT.features:
        raise Unsupported(f"EoMT needs a plain ViT, whose tokens queries can join; this is a {type(backbone).__name__}")
    config = backbone.config
    if any(not isinstance(block.attention, SoftmaxAttention) for block in backbone.blocks):
        raise Unsupported(f"EoMT needs softmax attention; the model has {config.attention.kind!r}")
    if not isinstance(config.mlp, GeluMLPConfig | SwiGLUConfig):
        raise Unsupported(f"EoMT needs an MLP that reads each token alone, not {config.mlp.kind!r}")
    if inside := [position.kind for position in config.position if not isinstance(position, AddedPositionConfig)]:
        raise Unsupported(f"EoMT needs positions that are added to the tokens, not {inside[0]!r}")
    return backbone
