"""Convolutional projection: the input of the convolutions, prefix tokens, and the published scale."""

import torch
from support.registered import randomise
from torch import nn

from vitrail.layers.attention import ConvProjectionConfig, Site

SITE = Site(dim=8, num_heads=2, grid=(4, 5), num_prefix=1)


def make(**options: object) -> nn.Module:
    return randomise(ConvProjectionConfig(**options).build(SITE)).double().eval()


def draw() -> torch.Tensor:
    return torch.randn(2, 1 + 20, 8, dtype=torch.float64)


def as_if_absent(conv: nn.Module) -> None:
    """A depth-wise convolution and a norm that are the identity."""
    conv.conv.weight.data.zero_()
    conv.conv.weight.data[:, :, 1, 1] = 1
    conv.norm.eps = 1e-12
    conv.norm.weight.data.fill_(1)
    conv.norm.bias.data.zero_()


def test_filters_of_their_centre_leave_attention_to_every_other_patch():
    layer, tokens = make(), draw()
    for conv in (layer.q_conv, layer.k_conv, layer.v_conv):
        as_if_absent(conv)
    kept = [0] + [1 + y * 5 + x for y in (0, 2) for x in (0, 2, 4)]  # the class token, and every other row and column
    q, k, v = layer.q(tokens), layer.k(tokens[:, kept]), layer.v(tokens[:, kept])
    parts = []
    for head in (slice(0, 4), slice(4, 8)):
        logits = q[..., head] @ k[..., head].transpose(1, 2) * 8**-0.5  # of the whole width, not of a head's
        parts.append(logits.softmax(dim=-1) @ v[..., head])
    torch.testing.assert_close(layer(tokens, (4, 5)), layer.projection(torch.cat(parts, dim=-1)))


def test_prefix_tokens_pass_around_the_convolutions():
    layer, tokens = make(), draw()
    q, k, v = layer.read(tokens, (4, 5))
    for part, linear in ((q, layer.q), (k, layer.k), (v, layer.v)):
        torch.testing.assert_close(part[:, :, 0].flatten(1), linear(tokens[:, 0]))


def test_a_query_sees_its_neighbours():
    layer, tokens = make(), draw()
    louder = tokens.clone()
    louder[:, 1 + 6] += 1  # row 1, column 1
    changed = (layer.read(louder, (4, 5))[0] - layer.read(tokens, (4, 5))[0]).abs().amax(dim=(0, 1, 3))[1:] > 0
    expected = torch.zeros(4, 5, dtype=torch.bool)
    expected[:3, :3] = True
    assert torch.equal(changed.unflatten(0, (4, 5)), expected)


def test_a_stride_of_one_has_a_key_for_each_patch():
    layer, tokens = make(stride=1), draw()
    _, k, _ = layer.read(tokens, (4, 5))
    assert k.shape[2] == tokens.shape[1]
    q, k, _ = layer.read(tokens, (4, 5))
    exact = (q @ k.transpose(-2, -1) * 8**-0.5).softmax(dim=-1)
    torch.testing.assert_close(layer.weights(tokens, (4, 5)), exact)
