"""The set loss: Hugging Face's given the same outputs, terms by hand, images that were not annotated."""

import pytest
import support.peers  # noqa: F401  (makes transformers loadable)
import torch
from transformers import DeformableDetrConfig, DetrConfig
from transformers.loss.loss_deformable_detr import DeformableDetrForObjectDetectionLoss
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

from vitrail.models.heads.detector import Boxes, Noised
from vitrail.tasks.detect.matching import Costs, Truth
from vitrail.tasks.detect.set_loss import SetLoss, assigned, denoised, losses, matched, weighted

LAYERS, IMAGES, QUERIES, CLASSES, MOST = 3, 3, 9, 4, 6


def made(counts=(3, 0, 5)):
    """Random boxes, in random rows."""
    torch.manual_seed(0)
    given = torch.zeros(IMAGES, MOST, 7)
    given[..., 4] = -1
    for image, count in enumerate(counts):
        rows, first = torch.randperm(MOST)[:count], torch.rand(count, 2) * 0.5
        corners = torch.cat([first, first + torch.rand(count, 2) * 0.4 + 0.05], dim=1)
        given[image, rows, :4] = corners * torch.tensor([100.0, 80.0, 100.0, 80.0])
        given[image, rows, 4] = torch.randint(CLASSES, (count,)).float()
    boxes = torch.rand(LAYERS, IMAGES, QUERIES, 4) * 0.5 + 0.1
    return Truth.of(given, (80, 100)), boxes


@pytest.mark.parametrize("softmax", [True, False])
def test_is_that_of_hugging_face(softmax):
    truth, boxes = made()
    logits = torch.randn(LAYERS, IMAGES, QUERIES, CLASSES + softmax)
    config = DetrConfig if softmax else DeformableDetrConfig
    peer = ForObjectDetectionLoss if softmax else DeformableDetrForObjectDetectionLoss
    labels = [
        {"class_labels": truth.labels[image][truth.valid[image]], "boxes": truth.boxes[image][truth.valid[image]]}
        for image in range(IMAGES)
    ]
    options = config(num_labels=CLASSES, auxiliary_loss=True, decoder_layers=LAYERS)
    expected, parts, _ = peer(logits[-1], labels, "cpu", boxes[-1], options, logits, boxes)
    loss = SetLoss("softmax" if softmax else "focal", Costs(1.0, 5.0, 2.0))
    found = matched([(loss, Boxes(logits, boxes), truth)])[0]
    torch.testing.assert_close(weighted(found, loss.weights), expected)
    last = matched([(loss, Boxes(logits[-1:], boxes[-1:]), truth)])[0]
    for ours, theirs in (("class_loss", "loss_ce"), ("box_loss", "loss_bbox"), ("giou_loss", "loss_giou")):
        torch.testing.assert_close(last[ours], parts[theirs])


def perfect(truth):
    """Queries that say the truth, and two that say nothing."""
    boxes = torch.cat([truth.boxes, torch.full((IMAGES, 2, 4), 0.5)], dim=1)[None]
    logits = torch.full((1, IMAGES, MOST + 2, CLASSES), -20.0)
    for image, row in truth.valid.nonzero().tolist():
        logits[0, image, row, truth.labels[image, row]] = 20.0
    return Boxes(logits, boxes.clamp(min=1e-3))


@pytest.mark.parametrize("kind", ["focal", "varifocal"])
def test_the_truth_costs_nothing(kind):
    truth, _ = made()
    found = matched([(SetLoss(kind), perfect(truth), truth)])[0]
    assert float(weighted(found, Costs())) == pytest.approx(0, abs=1e-4)


def test_varifocal_asks_for_the_overlap():
    truth, _ = made()
    found = perfect(truth)
    shifted = found._replace(boxes=found.boxes + torch.tensor([0.02, 0.0, 0.0, 0.0]))
    match = torch.where(truth.valid, torch.arange(MOST), -1)
    match = torch.cat([match, torch.full((IMAGES, 2), -1)], dim=1)[None]
    wanted = assigned(truth, match)
    varifocal, focal = losses([(SetLoss(kind), shifted, wanted) for kind in ("varifocal", "focal")])
    assert varifocal["class_loss"] > 1
    assert focal["class_loss"] < 1e-3


@pytest.mark.parametrize("kind", ["focal", "softmax"])
def test_images_that_were_not_annotated_teach_nothing(kind):
    truth, boxes = made()
    logits = torch.randn(LAYERS, IMAGES, QUERIES, CLASSES + (kind == "softmax"), requires_grad=True)
    unknown = truth._replace(known=torch.tensor([True, True, False]))
    found = matched([(SetLoss(kind), Boxes(logits, boxes), unknown)])[0]
    (gradient,) = torch.autograd.grad(weighted(found, Costs()), logits)
    assert not gradient[:, 2].any()
    assert gradient[:, 1].any(), "an image without objects does"
    nothing = matched(
        [(SetLoss(kind), Boxes(logits, boxes), truth._replace(known=torch.zeros(IMAGES, dtype=torch.bool)))]
    )[0]
    assert weighted(nothing, Costs()).item() == 0


def test_noised_boxes_need_no_matching():
    truth, _ = made((6, 6, 6))
    good = torch.tensor([True, True, True, False, False, False]).expand(IMAGES, -1)
    noise = Noised(truth.labels, truth.boxes, truth.labels, truth.boxes, good, truth.valid, 1)
    logits = torch.full((2, IMAGES, MOST, CLASSES), -20.0)
    logits[:, :, :3] = torch.where(torch.nn.functional.one_hot(truth.labels[:, :3], CLASSES).bool(), 20.0, -20.0)
    found = losses([(SetLoss(), Boxes(logits, truth.boxes.expand(2, -1, -1, -1)), denoised(noise, 2))])[0]
    assert float(weighted(found, Costs())) == pytest.approx(0, abs=1e-4)


def test_sets_have_the_losses_that_each_has_alone():
    truth, boxes = made()
    logits = torch.randn(LAYERS, IMAGES, QUERIES, CLASSES)
    noise = Noised(truth.labels, truth.boxes, truth.labels, truth.boxes, truth.valid, truth.valid, 1)
    first = (SetLoss("varifocal"), Boxes(logits, boxes), truth)
    second = (SetLoss("focal"), Boxes(logits[:1, :, :7, :1], boxes[:1, :, :7]), truth.without_class())
    noised = (SetLoss(), Boxes(logits[:2, :, :MOST], boxes[:2, :, :MOST]), noise)
    alone = [*matched([first]), *matched([second]), *losses([(*noised[:2], denoised(noise, 2))])]
    for found, expected in zip(matched([first, second], noised), alone, strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)
