"""Networks of inverted residuals: a wide final convolution, images of any size, norms that fold."""

import pytest
import torch
from support.registered import pictures, tiny
from torch import nn

from vitrail.layers.fuse import fuse

both = pytest.mark.parametrize("name", ["efficientnet_b0", "mobilevit_xxs"])


@both
@pytest.mark.parametrize("size", [(97, 64), (31, 100), (33, 40)])
def test_images_of_any_size_give_the_grids_that_the_config_tells(name, size):
    model = tiny(name)
    pyramid = model.features(torch.randn(1, 3, *size)).pyramid
    assert tuple(tuple(level.shape[2:]) for level in pyramid) == model.config.grids(size)


@both
def test_a_wide_convolution_stands_before_the_pool(name):
    model = tiny(name, final_dim=40)
    features = model.features(pictures(model))
    wide = model.final(features.pyramid[-1])
    assert wide.shape[1] == model.head.in_features == 40
    torch.testing.assert_close(model.classify(features), model.head(wide.mean(dim=(2, 3))))


@both
def test_norms_fold_into_convolutions(name):
    model = tiny(name).double()
    images = pictures(model, dtype=torch.float64)
    expected = model(images)
    fuse(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    torch.testing.assert_close(model(images), expected)
