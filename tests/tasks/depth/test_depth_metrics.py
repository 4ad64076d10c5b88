"""Errors of depth by hand; the loss forgives scale as far as it is told to; unknown pixels do not count."""

import math
import pickle

import pytest
import torch

from vitrail.errors import DataError
from vitrail.tasks.depth.depth_metrics import NAMES, DepthMeter, depth_errors, silog

TRUE = torch.tensor([[[1.0, 2.0], [4.0, 0.0]]])


def test_errors_by_hand():
    found = dict(zip(NAMES, depth_errors(torch.tensor([[[1.0, 3.0], [4.0, 9.0]]]), TRUE)[0].tolist(), strict=True))
    assert found["abs_rel"] == pytest.approx((0 + 0.5 + 0) / 3)
    assert found["rmse"] == pytest.approx(math.sqrt(1 / 3))
    assert found["delta1"] == pytest.approx(2 / 3)


def test_scale_does_not_change_aligned_errors():
    said = torch.rand(2, 4, 5) + 0.5
    truth = torch.rand(2, 4, 5) + 0.5
    once, thrice = depth_errors(said, truth), depth_errors(3 * said, truth)
    for name in ("abs_rel_aligned", "delta1_aligned", "silog"):
        torch.testing.assert_close(once[:, NAMES.index(name)], thrice[:, NAMES.index(name)])
    assert not torch.allclose(once[:, 0], thrice[:, 0])


def test_the_loss_forgives_scale():
    truth = torch.rand(2, 4, 5) + 0.5
    assert silog(3 * truth, truth, focus=1.0).item() == pytest.approx(0, abs=1e-3)
    assert silog(3 * truth, truth, focus=0.0).item() == pytest.approx(math.log(3), rel=1e-5)
    assert silog(3 * truth, truth, focus=0.5).item() == pytest.approx(math.log(3) * math.sqrt(0.5), rel=1e-5)


def test_unknown_pixels_do_not_count():
    said = (torch.rand(1, 2, 2) + 0.5).requires_grad_()
    loss = silog(said, TRUE)
    (gradient,) = torch.autograd.grad(loss, said)
    assert gradient[0, 1, 1] == 0
    assert bool(torch.isfinite(gradient).all())
    assert torch.autograd.grad(silog(said, torch.zeros(1, 2, 2)), said)[0].abs().max() == 0


def test_parts_are_merged_and_pickled():
    said, truth = torch.rand(4, 3, 3) + 0.5, torch.rand(4, 3, 3) + 0.5
    truth[3] = 0
    whole, first, second = (DepthMeter("depth") for _ in range(3))
    whole.update({"depth": said}, {"depth": truth})
    first.update({"depth": said[:1]}, {"depth": truth[:1]})
    second.update({"depth": said[1:]}, {"depth": truth[1:]})
    merged = pickle.loads(pickle.dumps(first))
    merged.merge(second)
    assert merged.compute()["delta1"] == pytest.approx(whole.compute()["delta1"])
    assert whole.compute()["images"] == 3
    with pytest.raises(DataError, match="depth"):
        DepthMeter("depth").compute()
