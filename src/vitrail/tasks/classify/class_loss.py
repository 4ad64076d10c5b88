"""Losses for classes of uneven frequency: class weights, focal loss, logit adjustment; of one class or of labels."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Literal["cross_entropy", "focal", "logit_adjusted"]
Weights = Literal["none", "inverse", "effective"]
_LEAST = 1e-6  # of a focal factor's base: the gradient of a root is infinite at 0


def class_weights(counts: Tensor, kind: Weights, beta: float = 0.999) -> Tensor:
    """The weight of an image by its class; the mean over all images is 1: counts ... K -> float32 ... K.

    "inverse" is proportional to 1 / n, "effective" to (1 - beta) / (1 - beta^n) (arXiv:1901.05555).
    """
    counts = counts.double().clamp(min=1)
    found = torch.ones_like(counts) if kind == "none" else 1 / counts
    if kind == "effective":
        found = (1 - beta) / (1 - beta**counts)
    return (found * counts.sum(dim=-1, keepdim=True) / (found * counts).sum(dim=-1, keepdim=True)).float()


def log_priors(counts: Tensor) -> Tensor:
    """The logarithm of the share of each class: counts ... K -> float32 ... K."""
    counts = counts.double().clamp(min=1)
    return (counts / counts.sum(dim=-1, keepdim=True)).log().float()


def one_class_loss(logits: Tensor, shares: Tensor, weights: Tensor, shift: Tensor, gamma: float) -> Tensor:
    """Cross-entropy of logits B K + shift K and class shares B K, each class times its weight K; the mean over B.

    `gamma` is that of the focal loss (arXiv:1708.02002), 0 for none.
    """
    log_p = F.log_softmax(logits + shift, dim=1)
    focus = (-torch.expm1(log_p)).clamp(min=_LEAST) ** gamma if gamma else 1.0
    return -(weights * shares * focus * log_p).sum(dim=1).mean()


def labels_loss(logits: Tensor, marks: Tensor, weights: Tensor, shift: Tensor, gamma: float) -> Tensor:
    """The same for labels: logits B K, marks B K from 0 to 1, weights K 2 of "no" and "yes"; the mean over B and K."""
    logits = logits + shift
    yes, no = F.logsigmoid(logits), F.logsigmoid(-logits)
    if gamma:  # a label is focused on by how far its probability is from the truth
        yes_focus, no_focus = no.exp().clamp(min=_LEAST) ** gamma, yes.exp().clamp(min=_LEAST) ** gamma
        yes, no = yes * yes_focus, no * no_focus
    return -(weights[:, 1] * marks * yes + weights[:, 0] * (1 - marks) * no).mean()
