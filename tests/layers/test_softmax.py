"""Softmax attention against torch's own layer, its explicit form, and special cases."""

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.norm import RMSNormConfig
from vitrail.layers.position import LearnedConfig
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.rope import RopeConfig

GRID, DIM, HEADS, N = (2, 3), 16, 2, 7  # one prefix token


def make(positions=(), norm=None, **options):
    site = Site(dim=DIM, num_heads=HEADS, grid=GRID, num_prefix=1, positions=positions)
    site = site if norm is None else site._replace(norm=norm)
    return randomise(SoftmaxConfig(**options).build(site)).double().eval()


def draw():
    return torch.randn(2, N, DIM, dtype=torch.float64)


@pytest.mark.parametrize("bias", ["qkv", "none"])
@pytest.mark.parametrize("fused", [True, False])
def test_is_torchs_multihead_attention(bias, fused):
    layer, tokens = make(bias=bias, fused=fused), draw()
    peer = nn.MultiheadAttention(DIM, HEADS, batch_first=True, bias=bias == "qkv", dtype=torch.float64).eval()
    with torch.no_grad():
        peer.in_proj_weight.copy_(layer.qkv.weight)
        peer.out_proj.weight.copy_(layer.projection.weight)
        if bias == "qkv":
            peer.in_proj_bias.copy_(layer.qkv.bias)
            peer.out_proj.bias.copy_(layer.projection.bias)
        else:
            layer.projection.bias.zero_()  # torch's bias=False takes this one away too
    expected, weights = peer(tokens, tokens, tokens, average_attn_weights=False)
    torch.testing.assert_close(layer(tokens, GRID), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(layer.weights(tokens, GRID), weights, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("positions", [(), (RopeConfig(),), (RelativeConfig(),), (RopeConfig(), RelativeConfig())])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": "qv"}, {"bias": "none"}, {"qk_norm": True}, {"temperature": 0.3}, {"inner_norm": True}],
    ids=str,
)
def test_forward_is_weights_times_values(positions, options):
    layer, tokens = make(positions, **options), draw()
    v_weight = layer.qkv.weight.chunk(3)[2]
    bias = layer.qkv.bias.chunk(3)[2] if layer.qkv.bias is not None else None
    v_bias = layer.qv_bias[1] if layer.qv_bias is not None else bias
    values = nn.functional.linear(tokens, v_weight, v_bias).unflatten(2, (HEADS, -1)).transpose(1, 2)  # B A N d
    mixed = (layer.weights(tokens, GRID) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(tokens, GRID), layer.projection(layer.norm(mixed)), atol=1e-12, rtol=1e-12)


def test_a_cold_softmax_picks_one_and_a_hot_one_all():
    tokens = draw()
    plain = make()
    cold, hot = make(temperature=1e-6), make(temperature=1e6)
    for layer in (cold, hot):
        layer.load_state_dict(plain.state_dict())
    best = plain.weights(tokens, GRID).argmax(dim=-1)
    torch.testing.assert_close(cold.weights(tokens, GRID), nn.functional.one_hot(best, N).double())
    torch.testing.assert_close(
        hot.weights(tokens, GRID), torch.full((2, HEADS, N, N), 1 / N).double(), atol=1e-5, rtol=0
    )


def test_temperature_divides_the_logits():
    tokens, plain, warm = draw(), make(), make(temperature=2.5)
    warm.load_state_dict(plain.state_dict())
    logits = plain.weights(tokens, GRID).log()
    torch.testing.assert_close(warm.weights(tokens, GRID), (logits / 2.5).softmax(dim=-1))


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ConfigError, match=f"temperature .*{temperature}"):
        make(temperature=temperature)


@pytest.mark.parametrize("norm", [None, RMSNormConfig()], ids=["layer", "rms"])
def test_qk_norm_forgets_the_scale_of_queries_and_keys(norm):
    layer, tokens = make(qk_norm=True, norm=norm), draw()
    before = layer.weights(tokens, GRID)
    with torch.no_grad():
        layer.qkv.weight[: 2 * DIM] *= 100
        layer.qkv.bias[: 2 * DIM] *= 100
    torch.testing.assert_close(layer.weights(tokens, GRID), before, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("head_dim", [4, 24])
def test_head_width_is_free(head_dim):
    layer, tokens = make(head_dim=head_dim), draw()
    assert layer.qkv.weight.shape == (3 * HEADS * head_dim, DIM)
    assert layer(tokens, GRID).shape == tokens.shape
    q, k, _ = layer.qkv(tokens).unflatten(2, (3, HEADS, head_dim)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.mT / head_dim**0.5).softmax(dim=-1)
    torch.testing.assert_close(layer.weights(tokens, GRID), expected)


def test_heads_that_do_not_divide_the_width_are_named():
    with pytest.raises(ConfigError, match=r"16 .*num_heads 3"):
        SoftmaxConfig().build(Site(dim=16, num_heads=3, grid=GRID))
    assert SoftmaxConfig(head_dim=5).build(Site(dim=16, num_heads=3, grid=GRID))


def test_qv_bias_leaves_the_keys_without():
    layer, full, tokens = make(bias="qv"), make(bias="qkv"), draw()
    state = layer.state_dict()
    q, v = state.pop("qv_bias")
    full.load_state_dict(state | {"qkv.bias": torch.cat([q, torch.zeros_like(q), v])})
    torch.testing.assert_close(layer(tokens, GRID), full(tokens, GRID))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.0, 0.5)], ids=["weights", "output"])
def test_dropout_works_in_training_alone(fused, rates):
    site = Site(dim=DIM, num_heads=HEADS, grid=GRID, num_prefix=1, dropout=rates[1])
    layer, tokens = SoftmaxConfig(fused=fused, dropout=rates[0]).build(site).double().eval(), draw()
    assert torch.equal(layer(tokens, GRID), layer(tokens, GRID))
    layer.train()
    assert not torch.equal(layer(tokens, GRID), layer(tokens, GRID))
    assert torch.equal(layer.weights(tokens, GRID), layer.weights(tokens, GRID))  # explanations never drop


def test_dropout_of_weights_is_unbiased():
    layer, tokens = make(fused=False), draw()
    layer.projection = nn.Identity()
    expected = layer(tokens, GRID)
    layer.dropout = 0.3
    layer.train()
    mean = torch.stack([layer(tokens, GRID) for _ in range(2000)]).mean(dim=0)
    torch.testing.assert_close(mean, expected, atol=0.1, rtol=0.1)


def test_positions_that_are_added_elsewhere_are_refused():
    with pytest.raises(Unsupported, match=r"SoftmaxAttention .*learned"):
        make(positions=(LearnedConfig(),))
