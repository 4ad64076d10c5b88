"""XCiTs of timm, block by block, and all tokens after the class token has read them."""

from typing import Any

import torch
from torch import Tensor, nn

from parity.compare import Case, Outputs
from parity.families import from_timm


@torch.no_grad()
def _blocks(model: nn.Module, images: Tensor) -> Outputs:
    final, blocks = model.forward_intermediates(images, output_fmt="NLC")
    return Outputs(model(images), blocks, final)


def _small(architecture: str, what: str, image_size: tuple[int, int], **options: Any) -> Case:
    size = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 7}
    return from_timm(architecture, what, image_size=image_size, run=_blocks, **size | options)


CASES = [
    _small("xcit_nano_12_p16_224", "small", (224, 224)),
    _small("xcit_tiny_12_p8_224", "rectangular", (64, 96)),
    _small("xcit_small_24_p16_224", "off-size, one class block", (50, 71), cls_attn_layers=1, num_classes=0),
]
