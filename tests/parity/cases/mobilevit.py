"""Parity cases of MobileViTs."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm

HF = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64], "num_labels": 7}


@torch.no_grad()
def timm_stages(model: nn.Module, images: Tensor) -> Outputs:
    """timm's levels, the last one before the convolution that makes it wide."""
    levels = model.forward_intermediates(images, intermediates_only=True, exclude_final_conv=True)
    return Outputs(model(images), [], levels=levels)


@torch.no_grad()
def hf_stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' maps after each stage."""
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=list(found.hidden_states))


CASES = [
    from_timm("mobilevit_xxs", image_size=(64, 64), run=timm_stages, num_classes=7),
    from_timm("mobilevit_xs", "odd size", image_size=(97, 64), run=timm_stages, num_classes=7),
    from_hf("MobileViTForImageClassification", image_size=(64, 64), run=hf_stages, **HF),
    from_hf("MobileViTForImageClassification", "odd size", image_size=(75, 50), run=hf_stages, expand_ratio=2.0, **HF),
]
