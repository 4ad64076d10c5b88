"""The loss of a set of boxes: classes of all queries, distance and overlap of those that answer for a true box."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.layers.boxes import overlaps, precise, to_corners
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

    def classes(self, logits: Tensor, wanted: Wanted, quality: Tensor) -> Tensor:
        """Classes of all queries that count: L B Q K+ -> a number; `quality`, L B Q, is the IoU of each box."""
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


def matched(
    sets: Sequence[tuple[SetLoss, Boxes, Truth]], noised: tuple[SetLoss, Boxes, Noised] | None = None
) -> list[Losses]:
    """The losses of sets of boxes after matching, then those of noised boxes, whose truth is known."""
    matches = assign_all(
        [loss.costs(found, truth) for loss, found, truth in sets],
        [truth.valid & truth.known[:, None] for _, _, truth in sets],
    )
    wanted = [(loss, found, assigned(truth, match)) for (loss, found, truth), match in zip(sets, matches, strict=True)]
    if noised is not None:
        loss, found, noise = noised
        wanted.append((loss, found, denoised(noise, len(found.logits))))
    return losses(wanted)


def assigned(truth: Truth, match: Tensor) -> Wanted:
    """What queries should say that answer for the true boxes `match` L B Q, -1 for none."""
    rows = match.clamp(min=0)
    return Wanted(
        labels=truth.labels.expand(len(match), -1, -1).gather(2, rows),
        boxes=truth.boxes.expand(len(match), -1, -1, -1).gather(2, rows[..., None].expand(-1, -1, -1, 4)),
        positive=match >= 0,
        counted=truth.known[None, :, None].expand_as(match),
        total=(truth.valid & truth.known[:, None]).sum().clamp(min=1),
    )


def denoised(noised: Noised, layers: int) -> Wanted:
    """What queries that start at noised boxes should say, in each of the layers."""
    near = noised.positive & noised.valid
    parts = (noised.true_labels, noised.true_boxes, near, noised.valid)
    labels, boxes, positive, counted = (one.expand(layers, *one.shape) for one in parts)
    return Wanted(labels, boxes, positive, counted, near.sum().clamp(min=1))


def losses(sets: Sequence[tuple[SetLoss, Boxes, Wanted]]) -> list[Losses]:
    """Classes of all queries that count, boxes of those that have one; sums over layers, per true box.

    The boxes of all sets are compared at once: on a GPU, the number of operators decides, not their size.
    """
    boxes = torch.cat([found.boxes.flatten(0, 2) for _, found, _ in sets])  # N 4
    true = torch.cat([wanted.boxes.flatten(0, 2) for _, _, wanted in sets]).to(boxes)
    positive = torch.cat([wanted.positive.flatten() for _, _, wanted in sets])  # N
    share, overlap = overlaps(to_corners(boxes), to_corners(true))
    terms = torch.stack([(boxes - true).abs().sum(dim=-1), 1 - overlap]) * positive  # 2 N
    sizes = [wanted.positive.numel() for _, _, wanted in sets]
    result = []
    for (loss, found, wanted), part, quality in zip(
        sets, terms.split(sizes, dim=1), share.detach().split(sizes), strict=True
    ):
        classes = loss.classes(precise(found.logits), wanted, quality.view_as(wanted.positive))
        distance, apart = (part.sum(dim=1) / wanted.total).unbind()
        result.append({"class_loss": classes, "box_loss": distance, "giou_loss": apart})
    return result


def weighted(losses: Losses, weights: Costs) -> Tensor:
    """One number to minimise."""
    return weights.label * losses["class_loss"] + weights.box * losses["box_loss"] + weights.giou * losses["giou_loss"]
