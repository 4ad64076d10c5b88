"""MLP-Mixers of timm, block by block; timm builds the published sizes alone."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_timm


@torch.no_grad()
def _blocks(model: nn.Module, images: Tensor) -> Outputs:
    final, blocks = model.forward_intermediates(images, output_fmt="NLC")
    return Outputs(model(images), blocks, final)


CASES = [
    from_timm("mixer_s32_224", run=_blocks, num_classes=7),
    from_timm("mixer_s16_224", "rectangular", image_size=(32, 48), run=_blocks, img_size=(32, 48), num_classes=0),
]
