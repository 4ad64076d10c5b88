"""LayerScale and DropPath: per sample and in expectation."""

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.layers.residual import DropPath, LayerScale, linear_ramp


def test_layer_scale_is_one_gain_per_channel():
    layer = LayerScale(4, 0.1)
    assert layer.gain.tolist() == pytest.approx([0.1] * 4)
    with torch.no_grad():
        layer.gain.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert layer(torch.ones(2, 3, 4))[1, 2].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_drop_path_drops_whole_samples_and_rescales(rate):
    dropped = DropPath(rate)(torch.ones(4000, 3, 2))
    samples = dropped.flatten(1)
    assert torch.equal(samples, samples[:, :1].expand(-1, 6))  # all of a sample or nothing
    values = samples[:, 0].unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / (1 - rate)]))
    assert (samples[:, 0] == 0).float().mean().item() == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_drop_path_keeps_the_expectation(rate):
    assert DropPath(rate)(torch.ones(20_000, 1)).mean().item() == pytest.approx(1, abs=0.03)


def test_drop_path_rests_outside_training_and_at_zero():
    branch = torch.randn(8, 3)
    assert DropPath(0.9).eval()(branch) is branch
    assert DropPath(0.0)(branch) is branch
    assert DropPath(0.9)(branch) is not branch


def test_blocks_of_many_rates_are_compiled_once():
    """If each rate were a constant, torch.compile would stop recompiling after eight of them."""
    torch._dynamo.reset()
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    for rate in linear_ramp(0.3, 12)[1:]:
        torch.compile(DropPath(rate), backend=keep)(torch.ones(2, 3))
    assert len(graphs) <= 2  # one for the first rate, one for any


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5])
def test_drop_path_refuses_rates_that_leave_nothing(rate):
    with pytest.raises(ConfigError, match=f"drop_path is {rate}"):
        DropPath(rate)


@pytest.mark.parametrize(
    ("rate", "depth", "expected"),
    [(0.3, 4, [0, 0.1, 0.2, 0.3]), (0.2, 1, [0]), (0.0, 3, [0, 0, 0]), (0.5, 2, [0, 0.5])],
)
def test_linear_ramp(rate, depth, expected):
    assert linear_ramp(rate, depth) == pytest.approx(expected)
