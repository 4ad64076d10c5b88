"""Cross-attention against torch's own, with and without padding in the context."""

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.attention import CrossAttention

PADDING = torch.tensor([[False, False, True, True, False], [False, False, False, False, False]])


def twins() -> tuple[CrossAttention, nn.MultiheadAttention]:
    """Our layer and torch's with the same weights; torch has separate maps for queries, keys and values."""
    layer = randomise(CrossAttention(16, num_heads=2, context_dim=24)).double().eval()
    peer = nn.MultiheadAttention(16, 2, kdim=24, vdim=24, batch_first=True).double().eval()
    k, v = layer.kv.weight.chunk(2)
    names = {"q_proj_weight": layer.q.weight, "k_proj_weight": k, "v_proj_weight": v}
    names |= {"in_proj_bias": torch.cat([layer.q.bias, layer.kv.bias])}
    names |= {"out_proj.weight": layer.projection.weight, "out_proj.bias": layer.projection.bias}
    peer.load_state_dict(names)
    return layer, peer


@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
def test_is_torchs(padding):
    layer, peer = twins()
    queries, context = torch.randn(2, 3, 16).double(), torch.randn(2, 5, 24).double()
    expected, weights = peer(queries, context, context, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(layer(queries, context, padding), expected)
    torch.testing.assert_close(layer.weights(queries, context, padding), weights)


def test_what_is_filling_has_no_effect():
    layer, _ = twins()
    queries, context = torch.randn(2, 3, 16).double(), torch.randn(2, 5, 24).double()
    other = context.masked_fill(PADDING[..., None], 9.0)
    torch.testing.assert_close(layer(queries, other, PADDING), layer(queries, context, PADDING))
    assert not torch.allclose(layer(queries, other), layer(queries, context))


def test_who_sees_nothing_hears_nothing():
    layer, _ = twins()
    queries, context, nothing = torch.randn(1, 3, 16).double(), torch.randn(1, 5, 24).double(), torch.ones(1, 5).bool()
    torch.testing.assert_close(layer(queries, context, nothing), layer.projection.bias.expand(1, 3, 16))
    assert not layer.weights(queries, context, nothing).any()


def test_refuses_heads_that_do_not_divide():
    with pytest.raises(ConfigError, match=r"16 .*num_heads 3"):
        CrossAttention(16, num_heads=3)
