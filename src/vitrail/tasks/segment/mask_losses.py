"""Losses of class maps: cross-entropy, Dice and Lovasz; ignored pixels do not count."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.targets.mask_target import IGNORE


def cross_entropy(logits: Tensor, mask: Tensor, weights: Tensor | None = None, *, hardest: float = 1.0) -> Tensor:
    """B K H W, B H W int64 -> the mean over pixels, weighted by class; 0 where all pixels are ignored.

    `hardest` is the share of the pixels that count, those with the largest loss (arXiv:1605.06885).
    """
    loss = F.cross_entropy(logits, mask, weights, ignore_index=IGNORE, reduction="none")
    known = mask != IGNORE
    each = known.to(loss) if weights is None else weights[mask.masked_fill(~known, 0)] * known
    if hardest < 1:
        least = loss.detach().flatten().topk(max(int(hardest * loss.numel()), 1), sorted=False).values.min()
        each = each * (loss.detach() >= least)
    return (loss * (each > 0)).sum() / each.sum().clamp(min=1e-6)


def dice(logits: Tensor, mask: Tensor) -> Tensor:
    """1 - Dice's coefficient, mean over the classes that are in the batch (arXiv:1606.04797): B K H W, B H W."""
    share, hot, known = _shares(logits, mask)
    share = share * known
    both, total = (share * hot).sum(dim=(0, 2, 3)), (share + hot).sum(dim=(0, 2, 3))  # K
    present = hot.sum(dim=(0, 2, 3)) > 0
    loss = (1 - 2 * both / total.clamp(min=1e-6)) * present
    return loss.sum() / present.sum().clamp(min=1)


def lovasz(logits: Tensor, mask: Tensor) -> Tensor:
    """The Lovasz extension of 1 - IoU, mean over the classes that are in the batch (arXiv:1705.08790)."""
    share, hot, known = _shares(logits, mask)
    wrong = ((hot - share).abs() * known).transpose(0, 1).flatten(1)  # K BHW; ignored pixels come last
    true = hot.transpose(0, 1).flatten(1)
    errors, order = wrong.sort(dim=1, descending=True)
    found = true.gather(1, order)
    total = found.sum(dim=1, keepdim=True)  # K 1
    missed, surplus = total - found.cumsum(dim=1), total + (1 - found).cumsum(dim=1)
    loss = 1 - missed / surplus.clamp(min=1e-6)
    slopes = torch.cat([loss[:, :1], loss.diff(dim=1)], dim=1)
    present = total[:, 0] > 0
    return ((errors * slopes).sum(dim=1) * present).sum() / present.sum().clamp(min=1)


def _shares(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and truth B K H W, and which pixels count, B 1 H W."""
    classes = torch.arange(logits.shape[1], device=mask.device)[:, None, None]  # K 1 1
    return logits.softmax(dim=1), (mask[:, None] == classes).to(logits.dtype), (mask != IGNORE)[:, None]
