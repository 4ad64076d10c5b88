"""Spatial-reduction attention: keys by hand, cases that equal softmax attention, and the meaning of weights."""

import pytest
import torch
import torch.nn.functional as F
from support.registered import randomise

from vitrail.layers.attention import ReductionConfig, Site, SoftmaxConfig
from vitrail.layers.norm import LayerNormConfig

SITE = Site(dim=8, num_heads=2, grid=(4, 4))


def make(prefix: int = 0, **options: object) -> torch.nn.Module:
    return randomise(ReductionConfig(**options).build(SITE._replace(num_prefix=prefix))).double().eval()


def draw(count: int) -> torch.Tensor:
    return torch.randn(2, count, 8, dtype=torch.float64)


def test_keys_are_a_strided_convolution_worked_out_by_hand():
    layer, tokens = make(ratio=2), draw(16)
    maps = tokens.transpose(1, 2).unflatten(2, (4, 4))  # B D h w
    weight, bias = layer.reduce.weight, layer.reduce.bias
    keys = [
        torch.einsum("bcpq,dcpq->bd", maps[:, :, y : y + 2, x : x + 2], weight) + bias
        for y, x in ((0, 0), (0, 2), (2, 0), (2, 2))
    ]
    k, v = layer.kv(layer.norm(torch.stack(keys, dim=1))).chunk(2, dim=-1)
    q = layer.q(tokens)
    parts = []
    for head in (slice(0, 4), slice(4, 8)):
        logits = q[..., head] @ k[..., head].transpose(1, 2) / 2  # sqrt(4)
        parts.append(logits.softmax(dim=-1) @ v[..., head])
    expected = layer.projection(torch.cat(parts, dim=-1))
    torch.testing.assert_close(layer(tokens, (4, 4)), expected, atol=1e-12, rtol=1e-12)


def test_a_ratio_of_one_is_softmax_attention():
    layer, tokens = make(ratio=1), draw(16)
    plain = SoftmaxConfig().build(SITE).double().eval()
    state = {f"projection.{part}": getattr(layer.projection, part) for part in ("weight", "bias")}
    state |= {f"qkv.{part}": torch.cat([getattr(m, part) for m in (layer.q, layer.kv)]) for part in ("weight", "bias")}
    plain.load_state_dict(state)
    torch.testing.assert_close(layer(tokens, (4, 4)), plain(tokens, (4, 4)))


def test_linear_keys_are_means_of_regions():
    layer, tokens = make(linear=True), draw(14 * 14)
    maps = tokens.transpose(1, 2).unflatten(2, (14, 14))
    means = F.avg_pool2d(maps, 2).flatten(2).transpose(1, 2)  # 14 x 14 -> 7 x 7
    reduced = F.gelu(layer.norm(means @ layer.reduce.weight[:, :, 0, 0].T + layer.reduce.bias))
    k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in layer.kv(reduced).chunk(2, dim=-1))
    q = layer.q(tokens).unflatten(2, (2, 4)).transpose(1, 2)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(tokens, (14, 14)), layer.projection(expected), atol=1e-12, rtol=1e-12)


def test_weights_are_even_within_a_region_and_whole_at_the_prefix():
    layer, tokens = make(prefix=1, ratio=2), draw(1 + 3 * 5)
    q, k, _ = layer.read(tokens, (3, 5))
    assert k.shape[2] == 1 + 2 * 3  # regions of an odd map are filled up
    exact = (q @ k.transpose(-2, -1) / 2).softmax(dim=-1)
    weights = layer.weights(tokens, (3, 5))
    torch.testing.assert_close(weights[..., 0], exact[..., 0])
    patches = weights[..., 1:].unflatten(3, (3, 5))
    assert torch.equal(patches[..., 0, 0], patches[..., 1, 1])
    torch.testing.assert_close(patches[..., 0, 0] * 4, exact[..., 1])
    torch.testing.assert_close(patches[..., 2, 4], exact[..., 6])  # a region of one patch at the corner


def test_every_patch_of_an_odd_map_is_heard():
    layer, tokens = make(ratio=4), draw(5 * 3)
    for index in range(15):
        louder = tokens.clone()
        louder[:, index] += 1
        changed = (layer(louder, (5, 3)) - layer(tokens, (5, 3))).abs().amax(dim=(0, 2))
        assert (changed > 0).all()


@pytest.mark.parametrize("linear", [False, True])
def test_the_norm_can_be_another_than_the_models(linear):
    own = ReductionConfig(linear=linear, norm=LayerNormConfig(eps=0.5)).build(SITE)
    assert own.norm.eps == 0.5
    assert ReductionConfig(linear=linear).build(SITE).norm.eps == SITE.norm.eps
