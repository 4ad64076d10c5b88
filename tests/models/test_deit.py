"""DeiT: two tokens, two heads, one output."""

import pytest
import torch
from support.registered import pictures, tiny
from torch import nn

from vitrail.errors import ConfigError
from vitrail.models.registry import create

NAME = "deit_tiny_distilled_patch16"


def test_answers_with_the_mean_of_both_heads():
    model = tiny(NAME)
    images = pictures(model)
    features = model.features(images)
    by_class = nn.functional.linear(features.prefix[:, 0], model.head.weight, model.head.bias)
    second = model.distillation_head
    by_distillation = nn.functional.linear(features.prefix[:, 1], second.weight, second.bias)
    assert not torch.allclose(by_class, by_distillation)
    torch.testing.assert_close(model.heads(features), (by_class, by_distillation))
    torch.testing.assert_close(model(images), (by_class + by_distillation) / 2)


def test_has_two_prefix_tokens_in_order():
    model = tiny(NAME)
    tokens, _ = model.embed(pictures(model))
    placed = tokens[0, :2] - model.position[0].table[:2]
    torch.testing.assert_close(placed, torch.cat([model.prefix.class_token, model.prefix.distillation_token]))


def test_is_a_vit_where_the_second_head_is_silent():
    model = tiny(NAME)
    nn.init.zeros_(model.distillation_head.weight)
    nn.init.zeros_(model.distillation_head.bias)
    features = model.features(pictures(model))
    torch.testing.assert_close(2 * model.classify(features), model.head(features.prefix[:, 0]))


def test_reset_head_resets_both():
    model = tiny(NAME).double()
    before = model.head, model.distillation_head
    model.reset_head(7)
    for fresh, old in zip((model.head, model.distillation_head), before, strict=True):
        assert fresh is not old
        assert fresh.weight.shape == (7, 32)
        assert fresh.weight.dtype == torch.float64
        assert 0 < fresh.weight.std() < 0.04
    model.reset_head(0)
    assert isinstance(model.head, nn.Identity)
    assert isinstance(model.distillation_head, nn.Identity)


@pytest.mark.parametrize("changes", [{"class_token": False, "pool": "mean"}, {"pool": "class_mean"}], ids=str)
def test_refuses_what_its_second_head_cannot_read(changes):
    with pytest.raises(ConfigError, match="class_token"):
        create(NAME, depth=1, **changes)
