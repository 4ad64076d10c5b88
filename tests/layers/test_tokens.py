"""Prefix tokens: which ones, in which order."""

import pytest
import torch
from support.registered import randomise

from vitrail.layers.tokens import PrefixTokens

CASES = [
    ({"class_token": True}, ["class_token"]),
    ({"class_token": True, "distillation": True}, ["class_token", "distillation_token"]),
    ({"class_token": True, "registers": 4}, ["class_token", "registers"]),
    ({"class_token": False, "registers": 2}, ["registers"]),
    ({"class_token": True, "distillation": True, "registers": 3}, ["class_token", "distillation_token", "registers"]),
    ({"class_token": False}, []),
]


@pytest.mark.parametrize(("options", "names"), CASES, ids=str)
def test_tokens_stand_in_order_before_the_patches(options, names):
    layer, patches = randomise(PrefixTokens(8, **options)), torch.randn(2, 6, 8)
    assert [name for name, _ in layer.named_parameters()] == names
    tokens = layer(patches)
    assert tokens.shape == (2, layer.count + 6, 8)
    assert torch.equal(tokens[:, layer.count :], patches)
    learned = [getattr(layer, name) for name in names]
    assert layer.count == sum(len(token) for token in learned)
    for sample in tokens:
        assert torch.equal(sample[: layer.count], torch.cat([*learned, torch.zeros(0, 8)]))


def test_each_token_learns_from_every_image():
    layer = PrefixTokens(8, class_token=True, registers=2)
    layer(torch.zeros(5, 6, 8)).sum().backward()
    assert (layer.class_token.grad == 5).all()
    assert (layer.registers.grad == 5).all()
