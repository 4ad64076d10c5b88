"""The loss of a set of masks: each class of an image is found by one query (Mask2Former, arXiv:2112.01527)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.targets.mask_target import IGNORE
from vitrail.layers.boxes import precise
from vitrail.models.heads.eomt import MaskQueries
from vitrail.tasks.detect.matching import assign

LABEL, MASK, DICE = 2.0, 5.0, 5.0  # weights of the terms, in the loss and in the matching
NO_OBJECT = 0.1  # weight of queries without a class


def mask_set_loss(found: MaskQueries, mask: Tensor) -> Tensor:
    """L B Q K+1, L B Q h w and the true classes B H W -> a number, the mean over layers.

    Masks are compared at the resolution of the queries; ignored pixels do not count.
    """
    size = found.masks.shape[3:]
    true = F.interpolate(mask[:, None].float(), size=size, mode="nearest")[:, 0].long()  # B h w
    known = (true != IGNORE).flatten(1)  # B N
    classes = found.classes.shape[-1] - 1
    hot = F.one_hot(true.flatten(1).masked_fill(~known, 0), classes).mT * known[:, None]  # B K N
    hot, logits = hot.to(torch.promote_types(found.masks.dtype, torch.float32)), precise(found.masks).flatten(3)
    match = assign(_costs(precise(found.classes), logits, hot, known), hot.any(dim=2))  # L B Q
    layers = zip(precise(found.classes), logits, match, strict=True)
    return torch.stack([_layer(*one, hot, known) for one in layers]).mean()


@torch.no_grad()
def _costs(classes: Tensor, logits: Tensor, hot: Tensor, known: Tensor) -> Tensor:
    """L B Q K+1, L B Q N, B K N -> L B Q K."""
    count = known.sum(dim=1).clamp(min=1)[:, None, None]  # B 1 1
    label = -classes.softmax(dim=-1)[..., :-1]
    right = F.softplus(-logits) * known[:, None]  # the cross-entropy of a pixel that is in the mask
    wrong = F.softplus(logits) * known[:, None]
    cross = (right @ hot.mT + (wrong.sum(dim=-1, keepdim=True) - wrong @ hot.mT)) / count
    share = logits.sigmoid() * known[:, None]
    both = share @ hot.mT
    total = share.sum(dim=-1, keepdim=True) + hot.sum(dim=-1)[:, None]
    return LABEL * label + MASK * cross + DICE * (1 - (2 * both + 1) / (total + 1))


def _layer(classes: Tensor, logits: Tensor, match: Tensor, hot: Tensor, known: Tensor) -> Tensor:
    """The loss of one layer: B Q K+1, B Q N, and the class B Q that each query answers for, -1 for none."""
    positive, rows = match >= 0, match.clamp(min=0)
    none = classes.shape[-1] - 1
    entropy = F.cross_entropy(classes.mT, torch.where(positive, match, none), reduction="none")  # B Q
    weight = torch.where(positive, 1.0, NO_OBJECT).to(entropy) * known.any(dim=1)[:, None]
    label = (entropy * weight).sum() / weight.sum().clamp(min=1e-6)
    wanted = hot.gather(1, rows[..., None].expand(-1, -1, hot.shape[2]))  # B Q N
    total = positive.sum().clamp(min=1)
    cross = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none") * known[:, None]
    cross = cross.sum(dim=2) / known.sum(dim=1).clamp(min=1)[:, None]  # B Q
    share = logits.sigmoid() * known[:, None]
    dice = 1 - (2 * (share * wanted).sum(dim=2) + 1) / (share.sum(dim=2) + wanted.sum(dim=2) + 1)
    return LABEL * label + ((MASK * cross + DICE * dice) * positive).sum() / total
