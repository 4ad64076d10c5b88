"""MLP, SwiGLU and StarReLU against their formulas."""

import math

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.layers.mlp import GeluMLPConfig, StarReLUConfig, SwiGLUConfig, activate
from vitrail.layers.norm import LayerNormConfig, RMSNormConfig

DIM = 8
FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def make(config, norm=None):
    return randomise(config.build(DIM, norm=norm or LayerNormConfig())).double().eval()


@pytest.mark.parametrize("activation", FORMULAS)
def test_activation_is_its_formula(activation):
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = torch.tensor([FORMULAS[activation](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activate(x, activation), expected, atol=1e-12, rtol=1e-12)


def test_activations_differ():
    x = torch.tensor([1.0], dtype=torch.float64)
    assert len({round(activate(x, name).item(), 6) for name in FORMULAS}) == 4


@pytest.mark.parametrize("inner_norm", [False, True])
def test_mlp_by_hand(inner_norm):
    layer, x = make(GeluMLPConfig(inner_norm=inner_norm)), torch.randn(3, DIM, dtype=torch.float64)
    hidden = nn.functional.gelu(x @ layer.fc1.weight.T + layer.fc1.bias)
    if inner_norm:
        assert isinstance(layer.norm, nn.LayerNorm)
        hidden = layer.norm(hidden)
    torch.testing.assert_close(layer(x, (1, 3)), hidden @ layer.fc2.weight.T + layer.fc2.bias)


@pytest.mark.parametrize("inner_norm", [False, True])
def test_swiglu_by_hand(inner_norm):
    layer = make(SwiGLUConfig(hidden=6, inner_norm=inner_norm), norm=RMSNormConfig())
    x = torch.randn(3, DIM, dtype=torch.float64)
    gate = x @ layer.fc1.weight[:6].T + layer.fc1.bias[:6]
    value = x @ layer.fc1.weight[6:].T + layer.fc1.bias[6:]
    hidden = gate / (1 + torch.exp(-gate)) * value
    if inner_norm:
        assert isinstance(layer.norm, nn.RMSNorm)
        hidden = layer.norm(hidden)
    torch.testing.assert_close(layer(x, (1, 3)), hidden @ layer.fc2.weight.T + layer.fc2.bias)


def test_star_relu_by_hand():
    layer, x = make(StarReLUConfig()), torch.randn(3, DIM, dtype=torch.float64)
    hidden = layer.activation.scale * (x @ layer.fc1.weight.T).clamp(min=0) ** 2 + layer.activation.bias
    torch.testing.assert_close(layer(x, (1, 3)), hidden @ layer.fc2.weight.T)


@pytest.mark.parametrize(
    ("config", "hidden"),
    [
        (GeluMLPConfig(), 32),
        (GeluMLPConfig(ratio=2.5), 20),
        (GeluMLPConfig(ratio=2.5, hidden=7), 7),
        (SwiGLUConfig(), 21),
        (SwiGLUConfig(hidden=9), 9),
        (StarReLUConfig(), 32),
        (StarReLUConfig(hidden=9), 9),
    ],
    ids=str,
)
def test_hidden_wins_over_ratio(config, hidden):
    assert make(config).fc2.in_features == hidden


def test_swiglu_costs_what_an_mlp_costs():
    mlp, swiglu = (config.build(384, norm=LayerNormConfig()) for config in (GeluMLPConfig(), SwiGLUConfig()))
    count = [sum(parameter.numel() for parameter in layer.parameters()) for layer in (mlp, swiglu)]
    assert count[1] == pytest.approx(count[0], rel=0.01)
