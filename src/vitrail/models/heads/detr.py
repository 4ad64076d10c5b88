"""DETR: detection as set prediction with a transformer (Carion et al. 2020, arXiv:2005.12872)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Rate
from vitrail.layers.boxes import precise
from vitrail.layers.detr import BoxMLP, DecoderLayer, EncoderLayer
from vitrail.layers.padding import Padding
from vitrail.layers.sine_position import sine_position
from vitrail.layers.stage import to_tokens
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.detector import Boxes, Detections, Detector, DetectorConfig, Noised


@dataclass(frozen=True, kw_only=True)
class DetrConfig(DetectorConfig, kind="detr"):
    """Reads the coarsest level. It needs long schedules: on small data prefer "deformable_detr"."""

    softmax: ClassVar[bool] = True
    takes_padding: ClassVar[bool] = True
    queries: Count = 100
    dim: Count = 256
    num_heads: Count = 8
    hidden: Count = 2048
    encoder_depth: CountFromZero = 6
    decoder_depth: Count = 6
    dropout: Rate = 0.1

    def build(self, backbone: Backbone, num_classes: int) -> "Detr":
        """The detector for the coarsest level of a backbone."""
        return Detr(self, backbone.config.level_dims[-1], num_classes)


class Detr(Detector):
    """An encoder over the tokens of the image, a decoder over learned queries, two heads."""

    config: DetrConfig

    def __init__(self, config: DetrConfig, width: int, num_classes: int) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        layer: dict[str, Any] = {"num_heads": config.num_heads, "hidden": config.hidden, "dropout": config.dropout}
        self.project = nn.Conv2d(width, dim, 1)
        self.encoder = nn.ModuleList(EncoderLayer(dim, **layer) for _ in range(config.encoder_depth))
        self.decoder = nn.ModuleList(DecoderLayer(dim, **layer) for _ in range(config.decoder_depth))
        self.norm = nn.LayerNorm(dim)
        self.queries = nn.Parameter(torch.randn(config.queries, dim))
        self.classifier = nn.Linear(dim, num_classes + 1)
        self.box = BoxMLP(dim)
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, features: Features, noised: Noised | None = None, valid: Tensor | None = None) -> Detections:
        """Boxes of all decoder layers."""
        level = self.project(features.pyramid[-1])
        tokens, grid = to_tokens(level), (level.shape[2], level.shape[3])  # B N D
        padding = None if valid is None else Padding.of(valid, [grid])
        counts, mask = (None, None) if padding is None else (padding.counts[:, 0], padding.seen)
        positions = sine_position(grid, self.config.dim, like=tokens, counts=counts)
        for layer in self.encoder:
            tokens = layer(tokens, positions, mask)
        places = self.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)  # B Q D
        queries, every = torch.zeros_like(places), list[Tensor]()
        for layer in self.decoder:
            queries = layer(queries, places, tokens, positions, mask)
            every.append(self.norm(queries))
        read = torch.stack(every)  # L B Q D
        return Detections(Boxes(self.classifier(read), precise(self.box(read)).sigmoid()))
