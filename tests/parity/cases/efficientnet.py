"""Parity cases of EfficientNets."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm

B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "num_labels": 7}
LAST = (1, 3, 5, 11, 16)  # how many blocks of a b0 there are up to the end of each level


@torch.no_grad()
def hf_stages(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' maps after the last block of each size; the first of its hidden states is what the stem gives."""
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=[found.hidden_states[number] for number in LAST])


CASES = [
    from_timm("efficientnet_b0", image_size=(64, 64), num_classes=7),
    from_timm("efficientnet_b1", "odd size", image_size=(75, 50), num_classes=7, in_chans=1),
    from_timm("efficientnet_lite2", image_size=(64, 64), num_classes=7),
    from_hf("EfficientNetForImageClassification", image_size=(64, 64), run=hf_stages, **B0),
    from_hf(
        "EfficientNetForImageClassification",
        "padded around",
        image_size=(75, 50),
        run=hf_stages,
        depthwise_padding=[3, 11],
        **B0,
    ),
]
