"""Parity cases of hybrids: timm's ViTs after a ResNet."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_timm

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 7}


@torch.no_grad()
def tokens(model: nn.Module, images: Tensor) -> Outputs:
    """timm's tokens after every block, class token first."""
    final, steps = model.forward_intermediates(images, output_fmt="NLC", return_prefix_tokens=True)
    return Outputs(model(images), [torch.cat([step[1], step[0]], dim=1) for step in steps], final)


CASES = [
    from_timm("vit_tiny_r_s16_p8_224", image_size=(64, 96), run=tokens, img_size=[64, 96], in_chans=1, **SMALL),
    from_timm("vit_small_r26_s32_224", image_size=(64, 96), run=tokens, img_size=[64, 96], **SMALL),
    from_timm("vit_base_r50_s16_224", image_size=(64, 32), run=tokens, img_size=[64, 32], **SMALL),
]
