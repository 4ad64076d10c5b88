"""Parity cases of CvT."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf

SMALL = {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3], "mlp_ratio": [2.0, 3.0, 4.0]}


@torch.no_grad()
def stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' logits and the map after each stage."""
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=list(found.hidden_states))


CASES = [
    from_hf("CvtForImageClassification", image_size=(64, 96), run=stages, num_labels=5, **SMALL),
    from_hf(
        "CvtForImageClassification", "odd size", image_size=(75, 50), run=stages, num_labels=3, num_channels=1, **SMALL
    ),
]
