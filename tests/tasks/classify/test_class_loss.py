"""Losses for uneven classes: their limits, values worked out by hand, and what they do to the answer."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from vitrail.tasks.classify.class_loss import class_weights, labels_loss, log_priors, one_class_loss

ONES, ZEROS = torch.ones(3), torch.zeros(3)


@given(
    counts=st.lists(st.integers(1, 5000), min_size=2, max_size=8),
    kind=st.sampled_from(["none", "inverse", "effective"]),
)
def test_the_mean_weight_of_an_image_is_1(counts: list[int], kind: str) -> None:
    weights = class_weights(torch.tensor(counts), kind)
    total = torch.tensor(counts, dtype=torch.float64)
    assert float((weights * total).sum() / total.sum()) == pytest.approx(1.0, rel=1e-5)
    order = torch.tensor(counts).argsort()
    assert (weights[order].diff() <= 1e-6).all()  # a rarer class never weighs less


def test_inverse_weights_give_classes_equal_sums() -> None:
    weights = class_weights(torch.tensor([900, 100]), "inverse")
    assert weights.tolist() == pytest.approx([1000 / 1800, 5.0])
    effective = class_weights(torch.tensor([900, 100]), "effective", 0.999)
    assert 1 < float(effective[1] / effective[0]) < 9
    assert class_weights(torch.tensor([[0, 5], [3, 2]]), "inverse").isfinite().all()  # a label that all images have


def test_without_options_it_is_the_cross_entropy() -> None:
    logits, truth = torch.randn(8, 3), torch.randint(0, 3, (8,))
    loss = one_class_loss(logits, F.one_hot(truth, 3).float(), ONES, ZEROS, 0.0)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-5)
    marks = torch.randint(0, 2, (8, 3)).float()
    loss = labels_loss(logits, marks, torch.ones(3, 2), ZEROS, 0.0)
    assert loss.item() == pytest.approx(F.binary_cross_entropy_with_logits(logits, marks).item(), rel=1e-5)


def test_focal_is_less_where_the_answer_is_right() -> None:
    sure = torch.tensor([[4.0, 0.0, 0.0]])
    truth = torch.tensor([[1.0, 0.0, 0.0]])
    plain, focal = (one_class_loss(sure, truth, ONES, ZEROS, gamma).item() for gamma in (0.0, 2.0))
    p = float(sure.softmax(dim=1)[0, 0])
    assert focal == pytest.approx((1 - p) ** 2 * plain, rel=1e-4)
    marks = torch.tensor([[1.0, 0.0, 0.0]])
    assert labels_loss(sure, marks, torch.ones(3, 2), ZEROS, 2.0) < labels_loss(
        sure, marks, torch.ones(3, 2), ZEROS, 0.0
    )


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_gradients_stay_finite_at_certainty(gamma: float) -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    truth = torch.tensor([[1.0, 0.0, 0.0]])
    (
        one_class_loss(logits, truth, ONES, ZEROS, gamma) + labels_loss(logits, truth, torch.ones(3, 2), ZEROS, gamma)
    ).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_logit_adjustment_asks_for_a_margin_in_favour_of_the_rare_class() -> None:
    """The best constant logits under the adjusted loss are equal: the frequency is in the shift, not in the model."""
    counts = torch.tensor([90, 10])
    logits = torch.zeros(2, requires_grad=True)
    truth = torch.eye(2).repeat_interleave(counts, dim=0)
    one_class_loss(logits.expand(100, 2), truth, torch.ones(2), log_priors(counts), 0.0).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-6
