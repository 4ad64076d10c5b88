"""Meters against torchmetrics and scikit-learn, against values by hand, and in parts against the whole."""

import json
import math
import pickle

import pytest
import support.peers  # noqa: F401  (torchmetrics loads torchvision, which needs it)
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score
from support.registered import tiny
from support.small_tasks import classifier
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from vitrail.errors import DataError
from vitrail.tasks.classify import class_metrics
from vitrail.tasks.classify.class_metrics import ClassMeter, LabelMeter

CLASSES, COUNT = 7, 400


def answers(classes=CLASSES, count=COUNT):
    labels = torch.arange(count) % classes
    truth = torch.nn.functional.one_hot(labels, classes)
    # One half is right and hardly knows it, the other is surer than it should be: so the bins matter.
    modest, proud = 0.3 * torch.randn(count, classes) + 1.5 * truth, 3 * torch.randn(count, classes) + truth
    return torch.where(torch.rand(count, 1) < 0.5, modest, proud), labels


def measured(meter, logits, labels, batch=64):
    for start in range(0, len(labels), batch):
        some = labels[start : start + batch]
        meter.update({"logits": logits[start : start + batch]}, {meter.field: some})
    return meter.compute()


def test_classes_agree_with_torchmetrics():
    logits, labels = answers()
    found = measured(ClassMeter(CLASSES), logits, labels)
    options = {"num_classes": CLASSES, "average": None}
    for name, peer in [
        ("precision", MulticlassPrecision(**options)),
        ("recall", MulticlassRecall(**options)),
        ("f1", MulticlassF1Score(**options)),
    ]:
        torch.testing.assert_close(found[name].float(), peer(logits, labels))
    assert torch.equal(found["confusion"], MulticlassConfusionMatrix(num_classes=CLASSES)(logits, labels))
    for name, expected in [
        ("accuracy", MulticlassAccuracy(num_classes=CLASSES, average="micro")(logits, labels)),
        ("balanced_accuracy", MulticlassAccuracy(num_classes=CLASSES, average="macro")(logits, labels)),
        ("top5", MulticlassAccuracy(num_classes=CLASSES, average="micro", top_k=5)(logits, labels)),
        ("ece", MulticlassCalibrationError(num_classes=CLASSES, n_bins=15)(logits.softmax(1), labels)),
        ("nll", torch.nn.functional.cross_entropy(logits, labels)),
    ]:
        assert found[name] == pytest.approx(float(expected), abs=1e-5), name
    assert 0.05 < found["ece"] < 0.5
    assert found["images"] == COUNT
    assert torch.equal(found["support"], torch.bincount(labels))


def test_calibration_by_hand():
    # Confidences of 0.9, 0.9, 0.6 and 1.0 (rounded); right, wrong, right, right.
    odds = torch.tensor([0.9, 0.9, 0.6, 1.0]).logit().clamp(max=60)
    logits = torch.stack([odds, torch.zeros(4)], dim=1)
    found = measured(ClassMeter(2), logits, torch.tensor([0, 1, 0, 0]))
    assert found["ece"] == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.6 - 1)) / 4, abs=1e-6)
    images, sure, right = found["bins"]
    assert images.tolist() == [0] * 9 + [1] + [0] * 3 + [2, 1]
    assert sure[13] == pytest.approx(0.9, abs=1e-6)
    assert right[13] == 0.5
    assert "top5" not in found


def test_a_class_without_images_has_no_recall():
    found = measured(ClassMeter(3), torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 1, 0]))
    assert found["recall"].tolist()[:2] == [1.0, 0.5]
    assert math.isnan(found["recall"][2])
    assert math.isnan(found["f1"][2])
    assert found["precision"].tolist() == [1.0, 1.0, 0.0]
    assert found["balanced_accuracy"] == 0.75


def test_many_classes_have_no_matrix(monkeypatch):
    monkeypatch.setattr(class_metrics, "MAX_CONFUSION", 6)
    found = measured(ClassMeter(CLASSES), *answers())
    assert "confusion" not in found
    assert 0 < found["accuracy"] < 1


@pytest.mark.parametrize("several", [False, True])
def test_parts_merge_to_the_whole(several):
    logits, labels = answers()
    if several:
        labels = (torch.rand(COUNT, CLASSES) < 0.3).float()

    def make():
        return LabelMeter([0.5] * CLASSES) if several else ClassMeter(CLASSES)

    whole = measured(make(), logits, labels)
    first, second = make(), make()
    measured(first, logits[:100], labels[:100])
    second.update({"logits": logits[:0]}, {second.field: labels[:0]})  # a process may have no images in a batch
    measured(second, logits[100:], labels[100:])
    empty = make()
    empty.merge(pickle.loads(pickle.dumps(first)))
    empty.merge(pickle.loads(pickle.dumps(second)))
    merged = empty.compute()
    assert merged.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(torch.as_tensor(merged[name]), torch.as_tensor(value), equal_nan=True)


@pytest.mark.parametrize("meter", [ClassMeter(3), LabelMeter([0.5] * 3)])
def test_nothing_seen_is_an_error(meter):
    with pytest.raises(DataError, match="empty"):
        meter.compute()


def test_labels_agree_with_scikit_learn():
    labels = (torch.rand(COUNT, CLASSES) < 0.3).float()
    logits = torch.randn(COUNT, CLASSES) + labels
    thresholds = [0.5, 0.4, 0.6, 0.5, 0.7, 0.3, 0.5]
    found = measured(LabelMeter(thresholds), logits, labels)
    scores, truth = logits.sigmoid().numpy(), labels.numpy()
    torch.testing.assert_close(
        found["ap_of"], torch.tensor(average_precision_score(truth, scores, average=None)), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        found["auc_of"], torch.tensor(roc_auc_score(truth, scores, average=None)), atol=1e-6, rtol=0
    )
    assert found["ap"] == pytest.approx(found["ap_of"].mean().item())
    said = scores >= torch.tensor(thresholds).numpy()
    torch.testing.assert_close(found["f1_of"], torch.tensor(f1_score(truth, said, average=None)))
    best = scores >= found["thresholds"].numpy()
    assert found["best_f1"] == pytest.approx(f1_score(truth, best, average="macro"))
    assert found["best_f1"] > found["f1"]
    for cut in torch.linspace(0.05, 0.95, 19):  # no other threshold is better
        assert (f1_score(truth, scores >= float(cut), average=None) <= f1_score(truth, best, average=None) + 1e-9).all()
    assert found["exact"] == pytest.approx((said == truth).all(axis=1).mean())
    assert found["bce"] == pytest.approx(
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).item(), abs=1e-6
    )


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_ranks_agree_with_scikit_learn_and_torchmetrics_where_scores_are_equal(data):
    count = data.draw(st.integers(2, 40))
    few = st.sampled_from([-3.0, -0.5, 0.0, 0.25, 2.0, 40.0, 41.0])  # the sigmoid of the last two is the same
    values = torch.tensor(data.draw(st.lists(few, min_size=count, max_size=count)))
    truth = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    assume(truth.any() and not truth.all())
    found = measured(LabelMeter([0.5]), values[:, None], truth[:, None].float())
    assert found["ap"] == pytest.approx(average_precision_score(truth, values.double()))
    assert found["auc"] == pytest.approx(roc_auc_score(truth, values.double()))
    if values.max() < 40:  # torchmetrics takes the sigmoid first, in float32
        assert found["ap"] == pytest.approx(float(binary_average_precision(values, truth.long())), abs=1e-5)
        assert found["auc"] == pytest.approx(float(binary_auroc(values, truth.long())), abs=1e-5)
    scores = values.sigmoid()
    best = max(f1_score(truth, scores >= cut) for cut in scores)
    assert found["best_f1"] == pytest.approx(best)
    assert f1_score(truth, scores >= found["thresholds"].float()) == pytest.approx(best)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(20, 500), share=st.floats(0.05, 0.95))
def test_ranks_agree_with_scikit_learn_on_random_scores(seed, count, share):
    draw = torch.Generator().manual_seed(seed)
    truth = torch.rand(count, generator=draw) < share
    assume(truth.any() and not truth.all())
    values = torch.randn(count, generator=draw) + truth
    found = measured(LabelMeter([0.5]), values[:, None], truth[:, None].float())
    assert found["ap"] == pytest.approx(average_precision_score(truth, values))
    assert found["auc"] == pytest.approx(roc_auc_score(truth, values))
    precision, recall, _ = precision_recall_curve(truth, values.sigmoid())
    curve = 2 * precision * recall / (precision + recall).clip(1e-12)
    assert found["best_f1"] == pytest.approx(curve.max())


def test_threshold_by_hand():
    scores, truth = torch.tensor([0.1, 0.4, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    found = measured(LabelMeter([0.5]), scores.logit()[:, None], truth[:, None])
    assert found["thresholds"].item() == pytest.approx(0.5)  # midway between 0.4 and 0.6
    assert (found["ap"], found["auc"], found["best_f1"]) == (1, 1, 1)


@pytest.mark.parametrize("truth", [[1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 1]])
def test_a_task_decides_as_the_meter_did(truth):
    """Also on the image of the lowest score, where all are taken, and where two scores have no number between them."""
    near = torch.tensor(0.625).nextafter(torch.tensor(1.0))
    scores = torch.stack([torch.tensor([0.1, 0.3, 0.9, 0.2]), torch.tensor([0.625, near, 0.7, 0.8])], dim=1)
    logits, labels = scores.logit(), torch.tensor([truth, truth[::-1]]).T.float()
    found = measured(LabelMeter([0.5, 0.5]), logits, labels)
    task = classifier(tiny(num_classes=2), ("a", "b"), multi_label=True, thresholds=found["thresholds"].tolist())
    answers = task.decode({"logits": logits})
    chosen = [{one.label for one in answer.candidates if one.chosen} for answer in answers]
    said = torch.tensor([["a" in names, "b" in names] for names in chosen])
    adopted = measured(task.metrics(), logits, labels)
    assert adopted["f1"] == pytest.approx(found["best_f1"])
    assert adopted["exact"] == pytest.approx((said == labels.bool()).all(dim=1).double().mean().item())
    both = (said & labels.bool()).sum(dim=0)
    assert adopted["f1_of"].tolist() == pytest.approx((2 * both / (said.sum(dim=0) + labels.sum(dim=0))).tolist())
    assert adopted["used"].tolist() == found["thresholds"].tolist()  # nothing is lost on the way


def test_where_all_are_taken_the_threshold_is_below_all():
    scores, truth = torch.tensor([0.2, 0.4, 0.6]), torch.tensor([1.0, 0.0, 1.0])
    found = measured(LabelMeter([0.5]), scores.logit()[:, None], truth[:, None])
    assert found["thresholds"].item() == pytest.approx(0.1)
    assert found["best_f1"] == pytest.approx(0.8)


def test_calibration_of_labels_by_hand():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.5], [0.9, 0.1]])
    found = measured(LabelMeter([0.5, 0.5]), scores.logit(), torch.tensor([[1.0, 0], [1, 1], [0, 0]]))
    assert found["label_accuracy"] == pytest.approx(5 / 6)
    assert found["ece"] == pytest.approx((3 * abs(0.9 - 2 / 3) + 2 * 0.1 + 0.5) / 6, abs=1e-6)
    assert found["bins"][0].sum() == 6


def test_a_label_that_all_or_none_have_is_left_out_with_a_note():
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 0, 1]])
    found = measured(LabelMeter([0.5] * 3), torch.tensor([[2.0, 1, 1], [-2, 1, 1], [1, -1, 1]]), labels)
    assert found["undefined"] == [1, 2]
    for name in ("ap_of", "auc_of", "f1_of"):
        assert found[name][0] == 1
        assert found[name][1:].isnan().all()
    assert (found["ap"], found["auc"], found["f1"]) == (1, 1, 1)
    assert found["thresholds"].tolist()[1:] == [0.5, 0.5]


def test_labels_without_a_defined_score_are_an_error():
    meter = LabelMeter([0.5])
    meter.update({"logits": torch.randn(3, 1)}, {"labels": torch.ones(3, 1)})
    with pytest.raises(DataError, match="label"):
        meter.compute()


def test_results_are_numbers_and_tensors_for_json():
    for found in (
        measured(ClassMeter(CLASSES), *answers()),
        measured(LabelMeter([0.5]), torch.randn(9, 1), torch.arange(9)[:, None] % 2),
    ):
        plain = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in found.items()}
        assert json.loads(json.dumps(plain)) == plain


def test_half_precision_is_summed_in_full():
    logits, labels = answers()
    found = measured(ClassMeter(CLASSES), logits.half(), labels)
    assert found["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits.half().double(), labels).item())
