"""SegFormer's head reads every level, at the resolution of the finest."""

import torch
from support.registered import tiny

from vitrail.models.heads import SegFormerConfig


def test_reads_every_level():
    model = tiny("resnet18").eval()
    features = model.features(torch.randn(2, 3, *model.config.image_size))
    head = SegFormerConfig(dim=8).build(model, 5).eval()
    found = head(features)
    assert found.shape == (2, 5, *features.pyramid[0].shape[2:])
    for index in range(len(features.pyramid)):
        levels = [level * (2.0 if at == index else 1.0) for at, level in enumerate(features.pyramid)]
        assert not torch.allclose(head(features._replace(pyramid=tuple(levels))), found)
