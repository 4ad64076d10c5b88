"""MetaFormers of timm and PoolFormers of Hugging Face; timm builds the published sizes alone."""

import torch
from torch import Tensor, nn

from parity.compare import Outputs
from parity.families import from_hf, from_timm


@torch.no_grad()
def _poolformer_levels(model: nn.Module, images: Tensor) -> Outputs:
    found = model(images, output_hidden_states=True)
    return Outputs(found.logits, [], levels=list(found.hidden_states))


CASES = [
    from_timm("poolformer_s12", image_size=(64, 96), num_classes=7),
    from_timm("poolformer_s12", "odd sizes", image_size=(75, 61), num_classes=7, in_chans=1),
    from_timm("poolformerv2_s12", image_size=(64, 96), num_classes=7),
    from_timm("convformer_s18", "no head", image_size=(61, 75), num_classes=0),
    from_timm("caformer_s18", image_size=(64, 96), num_classes=7),
    from_hf(
        "PoolFormerForImageClassification",
        image_size=(64, 96),
        run=_poolformer_levels,
        depths=[1, 2, 2, 1],
        hidden_sizes=[8, 16, 24, 32],
        mlp_ratio=3.0,
        num_labels=5,
    ),
]
