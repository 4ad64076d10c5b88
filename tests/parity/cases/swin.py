"""Parity cases of Swin and Swin v2: windows that fill the grid, that do not, and that are cut by it."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm

SMALL = {"num_classes": 7, "embed_dim": 8, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 2, 4)}
HF = {"num_labels": 7, "embed_dim": 8, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 2, 4]}
# Grids of 36 x 44, 18 x 22, 9 x 11, 5 x 6: windows of 3 do not fill them, and an odd edge is merged.
OFF, THREE = (144, 176), {"window_size": 3}
# A window is 5 now, where biases were learned in windows of 4, and of 3 in the last stage.
TRAINED = {"window_size": 5, "pretrained_window_sizes": [4, 4, 4, 3]}
# Grids of 24 x 16, 12 x 8, 6 x 4, 3 x 2: windows of 7 are cut to them in the end.
CUT = (96, 64)


@torch.no_grad()
def stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' maps after each stage, before it halves them."""
    found, levels = [], []
    body = model.base_model
    hooks = [
        layer.blocks[-1].register_forward_hook(lambda _module, _inputs, out: found.append(out[0]))
        for layer in body.encoder.layers
    ]
    logits = model(images).logits
    for hook in hooks:
        hook.remove()
    height, width = images.shape[2] // 4, images.shape[3] // 4
    for tokens in found:
        levels.append(tokens.transpose(1, 2).unflatten(2, (height, width)))
        height, width = -(-height // 2), -(-width // 2)
    return Outputs(logits, [], levels=levels)


CASES = [
    from_timm("swin_tiny_patch4_window7_224", **SMALL),
    from_timm("swin_small_patch4_window7_224", "cut windows", image_size=CUT, img_size=CUT, **SMALL),
    from_timm("swin_base_patch4_window7_224", "off size", image_size=OFF, img_size=OFF, **THREE, **SMALL),
    from_timm("swin_base_patch4_window7_224", "any size", image_size=OFF, strict_img_size=False, **THREE, **SMALL),
    from_timm("swinv2_tiny_window8_256", image_size=(256, 256), **SMALL),
    from_timm("swinv2_tiny_window16_256", "cut windows", image_size=(128, 128), img_size=128, **SMALL),
    from_timm("swinv2_tiny_window8_256", "off size", image_size=OFF, strict_img_size=False, **THREE, **SMALL),
    from_timm("swinv2_base_window12to16_192to256", image_size=(256, 256), **SMALL),
    from_hf("SwinForImageClassification", image_size=(64, 64), run=stages, window_size=2, **HF),
    from_hf("SwinForImageClassification", "off size", image_size=OFF, run=stages, **THREE, **HF),
    from_hf("Swinv2ForImageClassification", "cut windows", run=stages, window_size=8, **HF),
    from_hf("Swinv2ForImageClassification", "off size", image_size=OFF, run=stages, **THREE, **HF),
    from_hf("Swinv2ForImageClassification", "trained in other windows", run=stages, **TRAINED, **HF),
]
