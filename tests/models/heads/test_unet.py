"""U-Net's decoder: its resolutions, and that it reads every level and the image itself."""

import torch
from support.registered import tiny

from vitrail.models.heads import UNetConfig


def test_resolutions() -> None:
    for name, coarse in (("resnet18", 4), ("vit_tiny_patch16", None)):
        model = tiny(name).eval()
        height, width = model.config.image_size
        images = torch.randn(1, 3, height, width)
        head = UNetConfig(widths=(8,), detail=4).build(model, 5).eval()
        assert head(head.read(model, images)).shape == (1, 5, -(-height // 2), -(-width // 2))
        plain = UNetConfig(widths=(8, 4), detail=0).build(model, 5).eval()
        grid = model.features(images).grid if coarse is None else (-(-height // coarse), -(-width // coarse))
        assert plain(plain.read(model, images)).shape == (1, 5, *grid)


def test_reads_every_level() -> None:
    model = tiny("resnet18").eval()
    head = UNetConfig(widths=(16, 8), detail=4).build(model, 5).eval()
    features = head.read(model, torch.randn(2, 3, *model.config.image_size))
    assert len(features.pyramid) == 5
    found = head(features)
    for index in range(5):
        levels = [level * (2.0 if at == index else 1.0) for at, level in enumerate(features.pyramid)]
        assert not torch.allclose(head(features._replace(pyramid=tuple(levels))), found)
