"""Staged models with two heads."""

import torch
from support.registered import pictures, tiny


def test_new_heads_are_two_and_differ():
    model = tiny("efficientformer_l1")
    images = pictures(model)
    model.reset_head(7)
    by_labels, by_teacher = model.heads(model.features(images))
    assert by_labels.shape == by_teacher.shape == (2, 7)
    assert not torch.equal(model.head.weight, model.distillation_head.weight)
    assert model.distillation_head.bias.abs().max() == 0


def test_without_heads_the_pooled_vector_comes():
    model = tiny("efficientformer_l1", num_classes=0)
    features = model.features(pictures(model))
    torch.testing.assert_close(model.classify(features), features.patches.mean(dim=1))
