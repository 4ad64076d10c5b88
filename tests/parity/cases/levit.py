"""Parity cases of LeViT; both peers build it for one image size, Hugging Face for square ones."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm

TIMM = {"embed_dim": (32, 48, 64), "depth": (1, 2, 1), "num_heads": (2, 3, 2), "key_dim": 8, "num_classes": 5}
HF = {
    "hidden_sizes": [32, 48, 64],
    "depths": [1, 2, 1],
    "num_attention_heads": [2, 3, 2],
    "key_dim": [8, 8, 8],
    "num_labels": 5,
}


@torch.no_grad()
def stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' logits, and the maps before the attention that leads to the next stage, and at the end."""
    found: list[Tensor] = []
    layers = [stage.layers[2 * depth - 1] for stage, depth in zip(model.levit.encoder.stages, (1, 2, 1), strict=True)]
    handles = [layer.register_forward_hook(lambda _, __, result: found.append(result)) for layer in layers]
    logits = model(images).logits
    for handle in handles:
        handle.remove()
    side = images.shape[2] // 16
    sides = (side, (side + 1) // 2, (side + 3) // 4)
    maps = [each.transpose(1, 2).unflatten(2, (side, side)) for each, side in zip(found, sides, strict=True)]
    return Outputs(logits, [], levels=maps)


CASES = [
    from_timm("levit_128s", image_size=(96, 96), img_size=96, **TIMM),
    from_timm("levit_192", "rectangular", image_size=(80, 112), img_size=(80, 112), attn_ratio=3.0, **TIMM),
    from_timm("levit_256", "one head", image_size=(64, 64), img_size=64, distilled=False, mlp_ratio=4, **TIMM),
    from_hf("LevitForImageClassificationWithTeacher", image_size=(112, 112), run=stages, built_for=112, **HF),
    from_hf("LevitForImageClassification", image_size=(64, 64), run=stages, built_for=64, **HF),
]
