"""Parity cases of ResNets."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm, timm_levels

SMALL = {"num_classes": 7, "layers": (1, 2, 1, 1)}
HF = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 7}


def without_stem(model: nn.Module, images: Tensor) -> Outputs:
    """timm counts the stem as a level."""
    found = timm_levels(model, images)
    return found._replace(levels=found.levels[1:])


@torch.no_grad()
def hf_stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' maps after each stage; the first of its hidden states is what the stem gives."""
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=list(found.hidden_states[1:]))


CASES = [
    from_timm("resnet18", image_size=(64, 64), run=without_stem, **SMALL),
    from_timm("resnet50", "odd size", image_size=(75, 50), run=without_stem, **SMALL),
    from_hf("ResNetForImageClassification", "basic", image_size=(64, 64), run=hf_stages, layer_type="basic", **HF),
    from_hf("ResNetForImageClassification", "bottleneck", image_size=(75, 50), run=hf_stages, **HF),
]
