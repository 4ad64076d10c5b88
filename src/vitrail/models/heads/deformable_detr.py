"""Deformable DETR (Zhu et al. 2020, arXiv:2010.04159), and what makes it learn from few images.

Noised boxes are DINO's (arXiv:2203.03605), extra queries with repeated boxes those of H-DETR (arXiv:2207.13080); both
are for training alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Rate
from vitrail.errors import ConfigError
from vitrail.layers.boxes import inverse_sigmoid, precise
from vitrail.layers.detr import BoxMLP, DeformableDecoderLayer, DeformableEncoderLayer
from vitrail.layers.feature_pyramid import LevelProjection, SimplePyramid
from vitrail.layers.padding import Padding
from vitrail.layers.patch import Grid
from vitrail.layers.sine_position import box_position, sine_position
from vitrail.layers.stage import to_tokens
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.detector import Boxes, Detections, Detector, DetectorConfig, Noised, prior_bias

_SMALLEST = 0.05  # the side of a proposal on the finest level, as a share of the image


@dataclass(frozen=True, kw_only=True)
class DeformableDetrConfig(DetectorConfig, kind="deformable_detr"):
    """Reads the coarsest levels of a staged backbone, or a simple pyramid of a plain ViT's map (arXiv:2203.16527).

    `refine`: each decoder layer corrects the boxes of the one before it. `two_stage`: queries start at the tokens that
    look most like an object. `denoising` is about how many noised boxes are learned beside each image, 0 for none.
    `extra_queries` learn from boxes that are repeated `repeat` times.
    """

    takes_padding: ClassVar[bool] = True
    queries: Count = 300
    dim: Count = 256
    num_heads: Count = 8
    hidden: Count = 1024
    encoder_depth: CountFromZero = 6
    decoder_depth: Count = 6
    levels: Count = 4
    read: Count = 3  # levels of the backbone, the coarsest ones; others are made of these
    points: Count = 4
    decoder_points: Count = 4
    dropout: Rate = 0.0
    refine: bool = True
    two_stage: bool = True
    denoising: CountFromZero = 100
    extra_queries: CountFromZero = 0
    repeat: Count = 4

    def __post_init__(self) -> None:
        """Raises ConfigError for options that exclude each other."""
        super().__post_init__()
        if self.two_stage and not self.refine:
            raise ConfigError("two_stage needs refine: its queries start as boxes that each layer corrects")

    def build(self, backbone: Backbone, num_classes: int) -> "DeformableDetr":
        """The detector for the levels of a backbone."""
        return DeformableDetr(self, backbone.config.level_dims, num_classes)


class Queries(NamedTuple):
    """Where the decoder starts."""

    contents: Tensor  # B Q D
    positions: Tensor  # B Q D
    references: Tensor  # B Q 2, points, or B Q 4, boxes


class DeformableDetr(Detector):
    """An encoder over the tokens of all levels, and a decoder over queries; both sample a few points of each level."""

    config: DeformableDetrConfig

    def __init__(self, config: DeformableDetrConfig, widths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.config, dim, self.num_classes = config, config.dim, num_classes
        self.simple = SimplePyramid(widths[0], dim) if len(widths) == 1 else None
        widths = [dim] * 3 if self.simple is not None else widths[-config.read :]
        self.levels = LevelProjection(widths, dim, levels=config.levels)
        self.level_position = nn.Parameter(torch.randn(config.levels, dim))
        layer: dict[str, Any] = {"num_heads": config.num_heads, "hidden": config.hidden, "levels": config.levels}
        layer |= {"dropout": config.dropout}
        self.encoder = nn.ModuleList(
            DeformableEncoderLayer(dim, points=config.points, **layer) for _ in range(config.encoder_depth)
        )
        self.decoder = nn.ModuleList(
            DeformableDecoderLayer(dim, points=config.decoder_points, **layer) for _ in range(config.decoder_depth)
        )
        heads = config.decoder_depth + config.two_stage if config.refine else 1  # the last is for proposals
        self.classifiers = nn.ModuleList(nn.Linear(dim, num_classes) for _ in range(heads))
        self.boxes = nn.ModuleList(BoxMLP(dim) for _ in range(heads))
        if config.two_stage:
            self.proposal = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        else:
            self.queries = nn.Parameter(torch.randn(config.queries + config.extra_queries, 2 * dim))
            self.reference = nn.Linear(dim, 2)
        if config.two_stage or config.denoising:
            self.place = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.LayerNorm(2 * dim))
        if config.denoising:
            self.noised_label = nn.Parameter(torch.randn(num_classes, dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's initialisation: rare objects, boxes that start at their references and are small."""
        for classifier in self.classifiers:
            prior_bias(classifier)  # type: ignore[arg-type]
        for index, mlp in enumerate(self.boxes):
            last: nn.Linear = mlp[-1]  # type: ignore[index]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            if index == 0 and not self.config.two_stage:
                last.bias[2:] = -2.0
        if not self.config.two_stage:
            nn.init.xavier_uniform_(self.reference.weight)
            nn.init.zeros_(self.reference.bias)

    def forward(self, features: Features, noised: Noised | None = None, valid: Tensor | None = None) -> Detections:
        """Boxes of all decoder layers; in training also proposals, and boxes of extra and noised queries."""
        tokens, grids, padding = self.encode(features, valid)
        count = self.config.queries + (self.config.extra_queries if self.training else 0)
        if self.config.two_stage:
            proposals = self.propose(tokens, grids, padding)
            queries = self.chosen(proposals, count)
        else:
            proposals, queries = None, self.learned(tokens, count)
        num_noised = 0
        if noised is not None:
            num_noised = noised.boxes.shape[1]
            queries = _joined(self.of_noised(noised, queries), queries)
        mask = query_mask(self.config.queries, count - self.config.queries, noised, tokens.device)
        found = self.decode_queries(queries, tokens, grids, mask, padding)
        parts = [num_noised, self.config.queries, count - self.config.queries]
        noisy, main, extra = (Boxes(*pair) for pair in zip(*(part.split(parts, dim=2) for part in found), strict=True))
        return Detections(
            main,
            proposals if self.training else None,
            extra if extra.logits.shape[2] else None,
            noisy if num_noised else None,
        )

    def encode(self, features: Features, valid: Tensor | None = None) -> tuple[Tensor, list[Grid], Padding | None]:
        """The tokens of all levels after the encoder, B S D, the grid of each level, and their padding."""
        pyramid: Sequence[Tensor] = features.pyramid
        levels = self.levels(pyramid if self.simple is None else self.simple(pyramid[-1]))
        grids: list[Grid] = [(level.shape[2], level.shape[3]) for level in levels]
        tokens = torch.cat([to_tokens(level) for level in levels], dim=1)  # B S D
        padding = None if valid is None else Padding.of(valid, grids)
        counts = [None] * len(grids) if padding is None else padding.counts.unbind(1)
        placed = [
            sine_position(grid, self.config.dim, like=tokens, shift=0.5, counts=count) + level.to(tokens)
            for grid, level, count in zip(grids, self.level_position, counts, strict=True)
        ]
        positions, centres = torch.cat(placed, dim=-2), centres_of(grids, tokens, padding)  # [B] S D, [B] S 2
        references = centres.expand(tokens.shape[0], -1, -1)[:, :, None]  # B S 1 2
        every_level = references.expand(-1, -1, len(grids), -1) if padding is None else padding.scaled(references)
        for layer in self.encoder:
            tokens = layer(tokens, positions, every_level, grids, padding)
        return tokens, grids, padding

    def propose(self, tokens: Tensor, grids: Sequence[Grid], padding: Padding | None = None) -> Boxes:
        """How much each token looks like an object, and its box: 1 B S 1 and 1 B S 4.

        The box corrects one around the token that is larger on coarser levels; tokens whose own box would leave the
        image have an empty input and are not kept from being chosen, as in the published models.
        """
        starts, inside = anchors_of(grids, tokens, padding)
        found = self.proposal(tokens.masked_fill(~inside, 0.0))
        logits = self.classifiers[-1](found)[..., :1]
        return Boxes(logits[None], (precise(self.boxes[-1](found)) + starts).sigmoid()[None])

    def chosen(self, proposals: Boxes, count: int) -> Queries:
        """The best proposals as queries; ConfigError where there are fewer tokens."""
        logits, boxes = proposals.logits[0, :, :, 0], proposals.boxes[0]  # B S, B S 4
        check_tokens(logits, count)
        best = logits.topk(count, dim=1).indices
        references = boxes.gather(1, best[..., None].expand(-1, -1, 4)).detach()
        positions, contents = self.placed(references, logits.dtype).chunk(2, dim=2)
        return Queries(contents, positions, references)

    def placed(self, boxes: Tensor, dtype: torch.dtype) -> Tensor:
        """A position, and a content, made of a box: B Q 4 -> B Q 2D."""
        return self.place(box_position(boxes, self.config.dim // 2).to(dtype))

    def learned(self, tokens: Tensor, count: int) -> Queries:
        """Queries that are the same for every image."""
        positions, contents = self.queries[:count].expand(tokens.shape[0], -1, -1).to(tokens).chunk(2, dim=2)
        return Queries(contents, positions, precise(self.reference(positions)).sigmoid())

    def of_noised(self, noised: Noised, queries: Queries) -> Queries:
        """Queries that start at noised boxes and say a class, which may be wrong."""
        positions = self.placed(noised.boxes, queries.contents.dtype).chunk(2, dim=2)[0]
        contents = self.noised_label[noised.labels].to(positions)
        references = noised.boxes.to(queries.references)
        return Queries(contents, positions, references[..., : queries.references.shape[2]])

    def decode_queries(
        self,
        queries: Queries,
        tokens: Tensor,
        grids: Sequence[Grid],
        mask: Tensor | None,
        padding: Padding | None = None,
    ) -> Boxes:
        """The boxes of each decoder layer: L B Q K and L B Q 4."""
        contents, positions, references = queries
        logits, boxes = [], []
        for index, layer in enumerate(self.decoder):
            contents = layer(contents, positions, references, tokens, grids, mask=mask, padding=padding)
            head = index if self.config.refine else 0
            change = precise(self.boxes[head](contents))
            start = inverse_sigmoid(references)
            if start.shape[-1] == 2:  # a point has no size to correct
                start = torch.cat([start, torch.zeros_like(start)], dim=-1)
            logits.append(self.classifiers[head](contents))
            boxes.append((change + start).sigmoid())
            if self.config.refine:
                references = boxes[-1].detach()
        return Boxes(torch.stack(logits), torch.stack(boxes))


def cell_centres(grid: Grid, like: Tensor) -> Tensor:
    """The centres (x, y) of the cells of a map, as shares of its sides: N 2, row by row."""
    rows, columns = ((torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count for count in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def centres_of(grids: Sequence[Grid], like: Tensor, padding: Padding | None = None) -> Tensor:
    """The centres (x, y) of the cells of all levels, as shares of the image's sides: S 2, or B S 2 with padding."""
    centres = [cell_centres(grid, like) for grid in grids]
    if padding is None:
        return torch.cat(centres)
    ratios = padding.ratios(like).unbind(1)  # B 2 each
    return torch.cat([cells / ratio[:, None] for cells, ratio in zip(centres, ratios, strict=True)], dim=1)


def anchors_of(grids: Sequence[Grid], like: Tensor, padding: Padding | None = None) -> tuple[Tensor, Tensor]:
    """The box that each token starts with, S 4, as logits, and whether it is inside of the image, S 1.

    It lies around the token and is larger on coarser levels. One that is not inside is at infinity. With padding both
    differ between the images: B S 4, B S 1.
    """
    sizes = [like.new_full((rows * columns, 2), _SMALLEST * 2**level) for level, (rows, columns) in enumerate(grids)]
    centres, size = centres_of(grids, like, padding), torch.cat(sizes)
    anchors = torch.cat([centres, size.expand_as(centres)], dim=-1)  # [B] S 4
    inside = ((anchors > 0.01) & (anchors < 0.99)).all(dim=-1, keepdim=True)  # [B] S 1
    if padding is not None:
        inside = inside & ~padding.tokens[..., None]
    return (anchors / (1 - anchors)).log().masked_fill(~inside, torch.inf), inside


def check_tokens(tokens: Tensor, count: int) -> None:
    """ConfigError where there are fewer tokens, B S ..., than queries that start at them."""
    if tokens.shape[1] < count:
        raise ConfigError(
            f"the detector has {count} queries, but images of this size give only {tokens.shape[1]} tokens to start "
            "from; use fewer queries (task.head.queries), more levels or larger images"
        )


def query_mask(main: int, extra: int, noised: Noised | None, device: torch.device) -> Tensor | None:
    """Which query sees which, Q Q, in the order noised, `main`, `extra`; None where each sees all.

    Queries that find boxes see one another alone; extra ones, too; a group of noised ones also sees those that find
    boxes.
    """
    if noised is None and not extra:
        return None
    each = 0 if noised is None else noised.boxes.shape[1] // noised.groups
    groups = 0 if noised is None else noised.groups
    group = torch.arange(groups, device=device).repeat_interleave(each)
    kind = torch.cat([group, _kinds(-1, main, device), _kinds(-2, extra, device)])
    return (kind[:, None] == kind) | ((kind[:, None] >= 0) & (kind == -1))


def _kinds(kind: int, count: int, device: torch.device) -> Tensor:
    return torch.full((count,), kind, device=device)


def _joined(first: Queries, second: Queries) -> Queries:
    """The queries of both, one after the other."""
    return Queries(*(torch.cat(pair, dim=1) for pair in zip(first, second, strict=True)))
