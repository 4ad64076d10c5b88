"""DETR: every layer answers, and learned queries differ."""

import torch
from support.registered import tiny

from vitrail.models.heads import DetrConfig

SMALL = {"dim": 16, "num_heads": 2, "hidden": 24, "encoder_depth": 1, "decoder_depth": 3, "queries": 4}


def test_boxes_of_all_layers():
    model = tiny("resnet18")
    head = DetrConfig(**SMALL).build(model, 5).eval()
    found = head(model.features(torch.randn(2, 3, *model.config.image_size)))
    assert found.found.logits.shape == (3, 2, 4, 6), "the last class is no object"
    assert found.found.boxes.shape == (3, 2, 4, 4)
    assert bool(((found.found.boxes > 0) & (found.found.boxes < 1)).all())
    assert found[1:] == (None, None, None)
    assert head.scores(found.found.logits[-1]).shape == (2, 4, 5)
