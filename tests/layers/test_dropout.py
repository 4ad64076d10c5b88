"""Dropout on a CPU: the share, the mean, independence, gradients; the plain one elsewhere."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.layers import dropout as module
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.dropout import Dropout, dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_and_mean(rate: float) -> None:
    """Standard errors of the share are 0.0005 and less."""
    torch.manual_seed(0)
    found = dropout(torch.ones(1000, 1001), rate)
    assert abs((found == 0).float().mean().item() - rate) < 0.0025
    assert found.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=2e-4)
    kept = found > 0
    for pair in (kept[:, 1:] & kept[:, :-1], kept[1:] & kept[:-1], kept[:, 4:] & kept[:, :-4]):
        assert abs(pair.float().mean().item() - (1 - rate) ** 2) < 0.0025


def test_all_four_numbers_of_a_draw_are_dropped_alike() -> None:
    torch.manual_seed(0)
    found = dropout(torch.ones(400_000), 0.3).view(-1, 4)
    assert ((found == 0).float().mean(0) - 0.3).abs().max() < 0.006
    assert abs((found == 0).all(1).float().mean().item() - 0.3**4) < 0.002


def test_gradients_have_the_same_mask_and_seeds_repeat() -> None:
    x = torch.randn(7, 5, requires_grad=True)
    torch.manual_seed(3)
    found = dropout(x, 0.4)
    found.sum().backward()
    torch.testing.assert_close(found, x * x.grad)
    torch.manual_seed(3)
    assert torch.equal(found, dropout(x, 0.4))
    assert not torch.equal(found, dropout(x, 0.4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_stay(dtype: torch.dtype) -> None:
    assert dropout(torch.ones(3, dtype=dtype), 0.5).dtype == dtype


def test_evaluation_and_a_rate_of_zero_change_nothing() -> None:
    x = torch.randn(4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert not Dropout(1.0).train()(torch.ones(1000)).sum() > 1000


def test_compiled_code_keeps_the_operator_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(module.F, "dropout", lambda x, rate: calls.append(rate) or x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    dropout(torch.ones(4), 0.5)
    assert calls == [0.5]


def test_attention_with_dropout_has_the_mean_of_attention() -> None:
    torch.manual_seed(0)
    layer = SoftmaxConfig(dropout=0.2).build(Site(16, 2, (3, 3)))
    tokens = torch.randn(1, 9, 16)
    expected = layer.eval()(tokens, (3, 3))
    mean = layer.train()(tokens.expand(4000, 9, 16), (3, 3)).mean(0, keepdim=True)
    assert F.mse_loss(mean, expected).sqrt() < 0.02 * expected.std()
