"""Plain segmenters: the resolutions that they answer at."""

import torch
from support.registered import tiny

from vitrail.models.heads import LinearSegmenterConfig, SetrConfig
from vitrail.models.heads.segmenter import resized


def test_resolutions():
    model = tiny("vit_tiny_patch16")
    features = model.features(torch.randn(2, 3, *model.config.image_size))
    rows, columns = features.grid
    assert LinearSegmenterConfig().build(model, 5)(features).shape == (2, 5, rows, columns)
    assert SetrConfig(dim=8, decoder="naive").build(model, 5)(features).shape == (2, 5, rows, columns)
    assert SetrConfig(dim=8).build(model, 5)(features).shape == (2, 5, 16 * rows, 16 * columns)


def test_edges_stay_in_place():
    maps = torch.tensor([[[[0.0, 1.0]]]])
    assert resized(maps, (1, 4))[0, 0, 0].tolist() == [0, 0.25, 0.75, 1]
