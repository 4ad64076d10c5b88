"""RT-DETR (Zhao et al. 2023, arXiv:2304.08069): a light encoder, and queries that start at the best tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Positive, Rate
from vitrail.errors import Unsupported
from vitrail.layers.boxes import inverse_sigmoid, precise
from vitrail.layers.conv import ConvNorm
from vitrail.layers.detr import BoxMLP, DeformableDecoderLayer
from vitrail.layers.feature_pyramid import SimplePyramid
from vitrail.layers.hybrid_encoder import HybridEncoder
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_tokens
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.deformable_detr import anchors_of, check_tokens, query_mask
from vitrail.models.heads.detector import Boxes, Detections, Detector, DetectorConfig, Noised, prior_bias


@dataclass(frozen=True, kw_only=True)
class RtDetrConfig(DetectorConfig, kind="rt_detr"):
    """Reads the three coarsest levels of a staged backbone, or a simple pyramid of a plain ViT's map.

    `denoising` is about how many noised boxes are learned beside each image, 0 for none. `expansion` is the width of
    the blocks between levels over `dim`.
    """

    queries: Count = 300
    dim: Count = 256
    num_heads: Count = 8
    hidden: Count = 1024
    encoder_depth: CountFromZero = 1
    decoder_depth: Count = 6
    points: Count = 4
    expansion: Positive = 1.0
    dropout: Rate = 0.0
    denoising: CountFromZero = 100

    def build(self, backbone: Backbone, num_classes: int) -> "RtDetr":
        """The detector for the levels of a backbone."""
        return RtDetr(self, backbone.config.level_dims, num_classes)


class RtDetr(Detector):
    """A hybrid encoder over three levels, and a decoder whose queries are tokens with their boxes."""

    config: RtDetrConfig

    def __init__(self, config: RtDetrConfig, widths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.simple = SimplePyramid(widths[0], dim) if len(widths) == 1 else None
        widths = [dim] * 3 if self.simple is not None else widths[-3:]
        levels = len(widths)
        self.project = nn.ModuleList(ConvNorm(width, dim, 1) for width in widths)
        layer: dict[str, Any] = {"num_heads": config.num_heads, "hidden": config.hidden, "dropout": config.dropout}
        self.encoder = HybridEncoder(
            dim, levels=levels, depth=config.encoder_depth, expansion=config.expansion, **layer
        )
        self.enter = nn.ModuleList(ConvNorm(dim, dim, 1) for _ in range(levels))
        self.proposal = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.proposal_classifier, self.proposal_box = nn.Linear(dim, num_classes), BoxMLP(dim)
        self.place = nn.Sequential(nn.Linear(4, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.decoder = nn.ModuleList(
            DeformableDecoderLayer(dim, levels=levels, points=config.points, **layer)
            for _ in range(config.decoder_depth)
        )
        self.classifiers = nn.ModuleList(nn.Linear(dim, num_classes) for _ in range(config.decoder_depth))
        self.boxes = nn.ModuleList(BoxMLP(dim) for _ in range(config.decoder_depth))
        if config.denoising:
            self.noised_label = nn.Parameter(torch.randn(num_classes, dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Rare objects, and boxes that start at those of the layer before."""
        for classifier in (self.proposal_classifier, *self.classifiers):
            prior_bias(classifier)
        for mlp in (self.proposal_box, *self.boxes):
            nn.init.zeros_(mlp[-1].weight)
            nn.init.zeros_(mlp[-1].bias)

    def forward(self, features: Features, noised: Noised | None = None, valid: Tensor | None = None) -> Detections:
        """Boxes of all decoder layers; in training also those of proposals and of noised queries."""
        if valid is not None:
            raise Unsupported("RT-DETR has no mask for padding; give it images of one size")
        tokens, grids = self.encode(features)
        proposals, contents = self.propose(tokens, grids)
        references = proposals.boxes[0].detach()
        count = 0
        if noised is not None:
            count = noised.boxes.shape[1]
            contents = torch.cat([self.noised_label[noised.labels].to(contents), contents], dim=1)
            references = torch.cat([noised.boxes.to(references), references], dim=1)
        mask = query_mask(self.config.queries, 0, noised, tokens.device)
        logits, boxes = [], []
        for layer, classifier, box in zip(self.decoder, self.classifiers, self.boxes, strict=True):
            positions = self.place(references.to(contents.dtype))
            contents = layer(contents, positions, references, tokens, grids, mask=mask)
            logits.append(classifier(contents))
            boxes.append((precise(box(contents)) + inverse_sigmoid(references)).sigmoid())
            references = boxes[-1].detach()
        stacked = torch.stack(logits), torch.stack(boxes)
        noisy, main = (Boxes(*(part[:, :, span] for part in stacked)) for span in (slice(count), slice(count, None)))
        return Detections(main, proposals if self.training else None, None, noisy if count else None)

    def encode(self, features: Features) -> tuple[Tensor, list[Grid]]:
        """The tokens of all levels after the encoder, B S D, and the grid of each level."""
        pyramid: Sequence[Tensor] = features.pyramid
        levels = pyramid[-len(self.project) :] if self.simple is None else self.simple(pyramid[-1])
        maps = self.encoder([project(level) for project, level in zip(self.project, levels, strict=True)])
        maps = [enter(level) for enter, level in zip(self.enter, maps, strict=True)]
        return torch.cat([to_tokens(level) for level in maps], dim=1), [(one.shape[2], one.shape[3]) for one in maps]

    def propose(self, tokens: Tensor, grids: Sequence[Grid]) -> tuple[Boxes, Tensor]:
        """The tokens that look most like an object: logits 1 B Q K and boxes 1 B Q 4, and their contents B Q D."""
        check_tokens(tokens, self.config.queries)
        starts, inside = anchors_of(grids, tokens)
        found = self.proposal(tokens.masked_fill(~inside, 0.0))
        logits = self.proposal_classifier(found)
        best = logits.amax(dim=2).topk(self.config.queries, dim=1).indices[..., None]  # B Q 1
        boxes = (precise(self.proposal_box(found)) + starts).sigmoid()
        chosen = Boxes(
            logits.gather(1, best.expand(-1, -1, logits.shape[2]))[None], boxes.gather(1, best.expand(-1, -1, 4))[None]
        )
        return chosen, found.gather(1, best.expand(-1, -1, found.shape[2])).detach()
