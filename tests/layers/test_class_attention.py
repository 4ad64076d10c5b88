"""Class attention: the class token attends to all tokens, patches are not changed."""

import torch
from support.registered import randomise

from vitrail.layers.attention import ClassAttention, CrossAttention, Site


def layer() -> ClassAttention:
    return randomise(ClassAttention(Site(dim=16, num_heads=2, grid=(2, 3), num_prefix=1))).eval()


def test_the_class_token_hears_as_by_cross_attention():
    mine, other, tokens = layer(), CrossAttention(16, num_heads=2).eval(), torch.randn(3, 7, 16)
    other.load_state_dict(mine.state_dict())
    found = mine(tokens, (2, 3))
    torch.testing.assert_close(found[:, :1], other(tokens[:, :1], tokens))
    assert torch.equal(found[:, 1:], tokens[:, 1:])


def test_weights_show_it():
    mine, tokens = layer(), torch.randn(3, 7, 16)
    weights = mine.weights(tokens, (2, 3))
    mixed = weights[:, :, :1] @ mine.contents(tokens, (2, 3))
    torch.testing.assert_close(mine.joined(mixed), mine(tokens, (2, 3))[:, :1])
    assert torch.equal(weights[0, 1, 1:], torch.eye(7)[1:])
    rows = torch.tensor([4, 0])
    torch.testing.assert_close(mine.weights(tokens, (2, 3), rows), weights[:, :, rows])
