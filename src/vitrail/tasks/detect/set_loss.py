"""The loss of a set of boxes: classes of all queries, distance and overlap of those that answer for a true box."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.layers.boxes import generalised_iou, iou, precise, to_corners
from vitrail.models.heads.detector import Boxes, Noised
from vitrail.tasks.detect.matching import Costs, Truth, assign_all, costs

ClassLoss = Literal["focal", "varifocal", "softmax"]
Losses = dict[str, Tensor]


class Wanted(NamedTuple):
    """What each query should say."""

    labels: Tensor  # L B Q int64
    boxes: Tensor  # L B Q 4
    positive: Tensor  # L B Q bool: whether it answers for a true box
    counted: Tensor  # L B Q bool: whether it is learned from at all
    total: Tensor  # the number of true boxes


class SetLoss(NamedTuple):
    """Weights and kinds of the terms; the same weights are those of the matching.

    "focal" is arXiv:1708.02002; "varifocal" (arXiv:2008.13367) asks for the IoU of the box as its score, so that
    well placed boxes come first; "softmax" is the cross-entropy of DETR, where "no object" counts `no_object`.
    """

    kind: ClassLoss = "focal"
    weights: Costs = Costs()
    no_object: float = 0.1
    alpha: float = 0.25
    gamma: float = 2.0

    def costs(self, found: Boxes, truth: Truth) -> Tensor:
        """The costs of matching each layer by itself: L B Q M."""
        return costs(found.logits, found.boxes, truth, self.weights, softmax=self.kind == "softmax")

    def assigned(self, found: Boxes, truth: Truth, match: Tensor) -> Losses:
        """The losses of queries that answer for the true boxes `match` L B Q, -1 for none."""
        rows = match.clamp(min=0)
        boxes = truth.boxes.expand(len(match), -1, -1, -1).gather(2, rows[..., None].expand(-1, -1, -1, 4))
        wanted = Wanted(
            labels=truth.labels.expand(len(match), -1, -1).gather(2, rows),
            boxes=boxes,
            positive=match >= 0,
            counted=truth.known[None, :, None].expand_as(match),
            total=(truth.valid & truth.known[:, None]).sum().clamp(min=1),
        )
        return self.terms(found, wanted)

    def denoised(self, found: Boxes, noised: Noised) -> Losses:
        """The losses of noised boxes, whose truth is known."""
        near, layers = noised.positive & noised.valid, len(found.logits)
        parts = (noised.true_labels, noised.true_boxes, near, noised.valid)
        labels, boxes, positive, counted = (one.expand(layers, *one.shape) for one in parts)
        return self.terms(found, Wanted(labels, boxes, positive, counted, near.sum().clamp(min=1)))

    def terms(self, found: Boxes, wanted: Wanted) -> Losses:
        """Classes of all queries that count, boxes of those that have one; sums over layers, per true box."""
        first, second = to_corners(found.boxes), to_corners(wanted.boxes.to(found.boxes))
        overlap = generalised_iou(first, second)  # L B Q
        distance = (found.boxes - wanted.boxes).abs().sum(dim=-1)  # L B Q
        return {
            "class_loss": self._classes(precise(found.logits), wanted, iou(first.detach(), second)),
            "box_loss": (distance * wanted.positive).sum() / wanted.total,
            "giou_loss": ((1 - overlap) * wanted.positive).sum() / wanted.total,
        }

    def _classes(self, logits: Tensor, wanted: Wanted, quality: Tensor) -> Tensor:
        """L B Q K+ -> a number; `quality` L B Q is the IoU of each box."""
        if self.kind == "softmax":
            labels = torch.where(wanted.positive, wanted.labels, logits.shape[-1] - 1)  # L B Q
            loss = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
            weight = torch.where(wanted.positive, 1.0, self.no_object).to(loss) * wanted.counted
            return ((loss * weight).sum(dim=(1, 2)) / weight.sum(dim=(1, 2)).clamp(min=1e-6)).sum()
        hot = (F.one_hot(wanted.labels, logits.shape[-1]) * wanted.positive[..., None]).to(logits)  # L B Q K
        share = logits.sigmoid()
        if self.kind == "varifocal":
            scores = hot * quality[..., None].to(logits)
            weight = scores + (1 - hot) * (1 - self.alpha) * share.detach() ** self.gamma
        else:
            scores = hot
            miss = share * (1 - hot) + (1 - share) * hot
            weight = (self.alpha * hot + (1 - self.alpha) * (1 - hot)) * miss**self.gamma
        loss = F.binary_cross_entropy_with_logits(logits, scores, reduction="none") * weight
        return (loss.sum(dim=-1) * wanted.counted).sum() / wanted.total


def matched(sets: Sequence[tuple[SetLoss, Boxes, Truth]]) -> list[Losses]:
    """The losses of sets of boxes after matching, each summed over its layers."""
    matches = assign_all(
        [loss.costs(found, truth) for loss, found, truth in sets],
        [truth.valid & truth.known[:, None] for _, _, truth in sets],
    )
    return [loss.assigned(found, truth, match) for (loss, found, truth), match in zip(sets, matches, strict=True)]


def weighted(losses: Losses, weights: Costs) -> Tensor:
    """One number to minimise."""
    return weights.label * losses["class_loss"] + weights.box * losses["box_loss"] + weights.giou * losses["giou_loss"]
