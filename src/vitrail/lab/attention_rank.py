"""The rank of attention matrices: a bound by the head width, and the effective rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.lab.estimates import estimate
from vitrail.lab.experiment import FOUNDATIONS, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.plots import chart, line
from vitrail.lab.subjects import attention_inputs, packaged_vit
from vitrail.report import Section


@dataclass(frozen=True, kw_only=True)
class AttentionRankSettings(Settings):
    """softmax(q k / sqrt(d)) of random queries and keys, for several widths d below the number of tokens."""

    tokens: Count = 64
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    matrices: Count = 16


class AttentionRank(Experiment):
    """Numerical rank in double precision, and effective rank (Roy and Vetterli 2007)."""

    name = "attention-rank"
    title = "The rank of attention matrices"
    claim = "The rank of an attention matrix is at most min(n, d), and its effective rank is far below n."
    source = f"{FOUNDATIONS}; Rank Analysis (Attention Pattern Analysis; Expressivity and Universal Approximation)"
    prediction = "With heads narrower than the number of tokens, the numerical rank is at most the width of a head."
    falsifier = "The numerical rank exceeds the width of the head, or the effective rank is above half of n."
    quick = AttentionRankSettings()
    full = AttentionRankSettings(tokens=196, widths=(1, 2, 4, 8, 16, 32, 64), matrices=64)
    seconds = 0.25

    def measure(self, settings: AttentionRankSettings, *, seed: int, device: torch.device) -> Results:
        """Ranks by width, and the effective rank by layer of the packaged model."""
        shape = (settings.matrices, settings.tokens)
        logits, ranks, effective = [], [], []
        for width in settings.widths:
            product = torch.randn(*shape, width).double() @ torch.randn(*shape, width).double().transpose(1, 2)
            matrix = (product / math.sqrt(width)).softmax(dim=-1)
            logits.append(_rank(product) / width)
            ranks.append(_rank(matrix) / width)
            effective.append(_effective(matrix) / settings.tokens)
        return {
            "widths": list(settings.widths),
            "logits": logits,
            "ranks": ranks,
            "effective": effective,
            "trained": _trained(device),
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Rank by width before and after the softmax, and effective rank by layer."""
        widths = results[0]["widths"]
        layers = [float(index) for index in range(len(results[0]["trained"]))]
        lines = [line("after the softmax", widths, results, "ranks"), line("before it", widths, results, "logits")]
        text = "Numerical rank divided by the width of the head; the claim needs at most 1. The softmax raises it."
        other = "Effective rank of the attention matrices of the packaged model, as a share of the number of tokens."
        return (
            chart("Rank", lines, text, x="width of a head", y="rank / width", log_x=True, log_y=True),
            chart("Effective rank", [line("packaged", layers, results, "trained")], other, x="layer", y="share of n"),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The bound for the narrowest heads that are common in practice, and the effective rank."""
        largest = estimate([max(result["ranks"]) for result in results])
        trained = estimate([sum(result["trained"]) / len(result["trained"]) for result in results])
        return judge(
            [
                Check(text="the rank is at most the width of the head", found=largest, most=1.0),
                Check(text="before the softmax it is", found=estimate([max(r["logits"]) for r in results]), most=1.0),
                Check(
                    text="random attention has an effective rank below half of n",
                    found=estimate([max(result["effective"]) for result in results]),
                    most=0.5,
                    essential=False,
                ),
                Check(text="so has the trained model, as a mean over layers", found=trained, most=0.5, essential=False),
            ],
            note="The bound is that of the logits; their softmax is not linear and raises the rank",
        )

    def true_case(self) -> Sequence[Results]:
        """Linear attention without a softmax: its rank is that of the features."""
        return [
            {
                "widths": [2, 8],
                "logits": [1.0, 1.0],
                "ranks": _linear((2, 8)),
                "effective": [0.1, 0.2],
                "trained": [0.1],
            }
        ]

    def false_case(self) -> Sequence[Results]:
        """The identity, which a sharp softmax of distinct keys tends to."""
        ranks = [_rank(torch.eye(32).double()[None]) / width for width in (2, 8)]
        return [{"widths": [2, 8], "logits": [1.0, 1.0], "ranks": ranks, "effective": [1.0, 1.0], "trained": [1.0]}]


def _rank(matrices: Tensor) -> float:
    return float(torch.linalg.matrix_rank(matrices).double().mean())


def _effective(matrices: Tensor) -> float:
    """The exponential of the entropy of the normalised singular values, as a mean over matrices."""
    values = torch.linalg.svdvals(matrices)
    shares = values / values.sum(dim=-1, keepdim=True)
    return float(torch.special.entr(shares).sum(dim=-1).exp().mean())


def _linear(widths: Sequence[int]) -> list[float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        features = [torch.rand(2, 1, 32, width).double() for width in widths]
    products = [queries @ keys.transpose(1, 2) for queries, keys in features]
    return [_rank(one / one.sum(dim=-1, keepdim=True)) / width for one, width in zip(products, widths, strict=True)]


def _trained(device: torch.device) -> list[float]:
    """The effective rank by layer of the packaged model as a share of its tokens."""
    with torch.no_grad():
        looked = [layer.weights(tokens, grid) for layer, tokens, grid in attention_inputs(*packaged_vit(device))]
    return [_effective(weights.double().flatten(0, 1)) / weights.shape[-1] for weights in looked]
