"""Decoding of boxes: the best first, one or several classes for a query; every family carries a detector."""

import pytest
import torch
from support.registered import tiny
from torch import nn

from vitrail.models.heads import DeformableDetrConfig, DetrConfig
from vitrail.models.heads.detector import prior_bias
from vitrail.models.registry import FAMILIES

SMALL = {"dim": 16, "num_heads": 2, "hidden": 24, "encoder_depth": 1, "decoder_depth": 2, "queries": 4}
BOXES = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.4, 0.2]]])  # B Q 4


def detector(config, model=None):
    return config.build(model or tiny("vit_tiny_patch16"), 3)


def test_a_query_of_softmax_gives_one_box():
    head = detector(DetrConfig(**SMALL))
    logits = torch.tensor([[[0.0, 3.0, 2.9, 0.0], [0.0, 0.0, 1.0, 5.0]]])
    boxes, scores, labels = head.decode(logits, BOXES, 2)
    assert labels.tolist() == [[1, 2]]
    torch.testing.assert_close(scores, logits.softmax(-1)[:, [0, 1], [1, 2]])
    torch.testing.assert_close(boxes[0, 0], torch.tensor([0.4, 0.3, 0.6, 0.7]))
    assert boxes[0, 1, 0] == 0, "a box ends at the edge of the image"


def test_a_query_of_sigmoid_may_give_several():
    head = detector(DeformableDetrConfig(**SMALL))
    logits = torch.tensor([[[-5.0, 3.0, 2.9], [-5.0, -5.0, 1.0]]])
    boxes, scores, labels = head.decode(logits, BOXES, 3)
    assert labels.tolist() == [[1, 2, 2]]
    assert scores[0].tolist() == sorted(scores[0].tolist(), reverse=True)
    torch.testing.assert_close(boxes[0, 0], boxes[0, 1])


def test_classes_begin_rare():
    linear = nn.Linear(4, 3)
    prior_bias(linear)
    torch.testing.assert_close(linear.bias.sigmoid(), torch.full((3,), 0.01))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_carries_a_detector(name):
    model = tiny(next(iter(FAMILIES[name].presets)))
    head = detector(DeformableDetrConfig(**SMALL, levels=3), model).eval()
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    features = model.features(images)
    assert [level.shape[1] for level in features.pyramid] == list(model.config.level_dims)
    found = head(features).found
    assert (found.logits.shape, found.boxes.shape) == ((2, 2, 4, 3), (2, 2, 4, 4))
    assert bool(torch.isfinite(found.boxes).all())
