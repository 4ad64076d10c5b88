"""Parity cases of PVT and PVT v2."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm

HF = {
    "depths": [1, 2, 1, 1],
    "hidden_sizes": [16, 32, 48, 64],
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [4, 2, 2, 2],
    "num_labels": 5,
}
TIMM = {
    "depths": (1, 2, 1, 1),
    "embed_dims": (16, 32, 48, 64),
    "num_heads": (1, 2, 2, 4),
    "mlp_ratios": (4, 2, 2, 2),
    "num_classes": 5,
}
# Grids of 60 x 60, 30 x 30, 15 x 15, 8 x 8: ratios of 8, 4 and 2 do not divide the first three.
OFF = (240, 240)


@torch.no_grad()
def blocks(model: nn.Module, images: Tensor) -> Outputs:
    """The tokens after each block of transformers' PVT, and after the final norm."""
    found = model(images, output_hidden_states=True)
    *states, final = found.hidden_states
    return Outputs(found.logits, list(states), final)


@torch.no_grad()
def levels(model: nn.Module, images: Tensor) -> Outputs:
    """The map after each stage of PVT v2: the last before its norm, which is our final one, and after it."""
    stages = model.stages if hasattr(model, "stages") else model.pvt_v2.encoder.layers
    found: list[Tensor] = []
    norms = [stage.norm if hasattr(stage, "norm") else stage.layer_norm for stage in stages]
    handles = [norm.register_forward_hook(lambda _, args, result: found.extend((args[0], result))) for norm in norms]
    logits = model(images)
    for handle in handles:
        handle.remove()
    grids = [(-(-images.shape[2] // step), -(-images.shape[3] // step)) for step in (4, 8, 16, 32)]
    tokens = [*found[1:-2:2], found[-2]]
    maps = [each.transpose(1, 2).unflatten(2, grid) for each, grid in zip(tokens, grids, strict=True)]
    return Outputs(getattr(logits, "logits", logits), [], found[-1], levels=maps)


CASES = [
    from_hf("PvtForImageClassification", image_size=(64, 64), run=blocks, built_for=64, **HF),
    from_hf(
        "PvtForImageClassification",
        "another reduction and eps",
        image_size=(96, 96),
        run=blocks,
        built_for=96,
        **HF | {"sequence_reduction_ratios": [4, 2, 1, 1], "layer_norm_eps": 1e-3},
    ),
    from_hf("PvtV2ForImageClassification", image_size=(96, 64), run=levels, **HF),
    from_hf(
        "PvtV2ForImageClassification", "linear", image_size=(96, 64), run=levels, **HF | {"linear_attention": True}
    ),
    from_hf("PvtV2ForImageClassification", "off size", image_size=OFF, run=levels, **HF),
    from_timm("pvt_v2_b2", image_size=(96, 64), run=levels, **TIMM),
    from_timm("pvt_v2_b2", "off size", image_size=OFF, run=levels, **TIMM),
    from_timm("pvt_v2_b2_li", image_size=(256, 288), run=levels, in_chans=1, **TIMM),
]
