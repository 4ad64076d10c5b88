"""EoMT: queries among the tokens of a plain ViT, masked attention in training, what it refuses."""

import pytest
import torch
from support.registered import tiny

from vitrail.errors import ConfigError, Unsupported
from vitrail.models.heads import EomtConfig

SMALL = {"queries": 5, "blocks": 1, "upscale": 1}


def made(**options):
    torch.manual_seed(0)
    model = tiny("vit_tiny_patch16", num_classes=0)
    return model, EomtConfig(**SMALL | options).build(model, 3), torch.randn(2, 3, *model.config.image_size)


def test_shapes():
    model, head, images = made(upscale=2)
    features = head.eval().read(model.eval(), images)
    rows, columns = features.grid
    assert features.prefix.shape[1] == 5 + model.prefix.count
    assert head(features).shape == (2, 3, 4 * rows, 4 * columns)
    layers = head.layers(model, images)
    assert layers.classes.shape == (2, 2, 5, 4)
    assert layers.masks.shape == (2, 2, 5, 4 * rows, 4 * columns)


def test_the_last_layer_is_the_answer():
    model, head, images = made()
    model.eval(), head.eval()
    classes, masks = head.predict(head.read(model, images))
    layers = head.layers(model, images)
    torch.testing.assert_close(layers.classes[-1], classes)
    torch.testing.assert_close(layers.masks[-1], masks)


def test_masked_queries_see_the_patches_of_their_mask_alone():
    model, head, images = made(masked=1.0)
    features = head.read(model, images)
    allowed = head._mask(features)[:, 0]
    prefix, patches = features.prefix.shape[1], features.patches.shape[1]
    assert allowed.shape[1:] == (prefix + patches, prefix + patches)
    assert bool(allowed[:, 5:].all()), "other tokens see all"
    assert bool(allowed[:, :, :prefix].all()), "all see queries and prefix tokens"
    assert 0 < float(allowed[:, :5, prefix:].float().mean()) < 1
    free = made(masked=0.0)[1]
    assert bool(free._mask(features).all())


def test_masks_matter_in_training_alone():
    model, head, images = made(masked=1.0)
    model.eval()
    masked = head.train().layers(model, images).classes[-1]
    plain = head.eval().layers(model, images).classes[-1]
    assert not torch.allclose(masked, plain)


def test_what_cannot_take_queries():
    with pytest.raises(Unsupported, match="plain ViT"):
        EomtConfig(**SMALL).build(tiny("resnet18"), 3)
    with pytest.raises(ConfigError, match="blocks"):
        EomtConfig(blocks=99).build(tiny("vit_tiny_patch16"), 3)
    with pytest.raises(Unsupported, match="rope"):
        EomtConfig(**SMALL).build(tiny("vit_tiny_patch16", position=({"kind": "rope"},)), 3)
