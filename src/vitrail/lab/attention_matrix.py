"""Properties of the attention matrix: stochastic rows, equivariance to permutations, variance of scaled logits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, estimate, exponent
from vitrail.lab.experiment import FOUNDATIONS, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.plots import chart, line
from vitrail.lab.subjects import attention_inputs, packaged_vit
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.report import Section


@dataclass(frozen=True, kw_only=True)
class AttentionMatrixSettings(Settings):
    """Random attention over `tokens` tokens; logits of random queries and keys of several widths."""

    tokens: Count = 64
    dim: Count = 192
    num_heads: Count = 3
    widths: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    pairs: Count = 40_000


class AttentionMatrix(Experiment):
    """Measured on the softmax attention of the library, on random vectors, and on the packaged model."""

    name = "attention-matrix"
    title = "The attention matrix: rows, permutations, and the scale of logits"
    claim = (
        "Rows of attention are distributions, attention commutes with permutations of the tokens, and dividing by "
        "the root of d_k keeps the variance of the logits."
    )
    source = f"{FOUNDATIONS}; Scaled Dot-Product Attention Analysis, Attention Matrix Properties"
    prediction = (
        "Rows sum to 1 and commute with permutations up to rounding; the variance of logits is constant in d_k with "
        "scaling and proportional to d_k without; in a trained model it is about 1, too."
    )
    falsifier = "A row that does not sum to 1, an error of permutation above 1e-5, or an exponent off by 0.05."
    quick = AttentionMatrixSettings()
    full = AttentionMatrixSettings(tokens=197, dim=768, num_heads=12, pairs=1_000_000)
    seconds = 0.35

    def measure(self, settings: AttentionMatrixSettings, *, seed: int, device: torch.device) -> Results:
        """Errors of rows and permutations, and variances of logits."""
        site = Site(dim=settings.dim, num_heads=settings.num_heads, grid=(settings.tokens, 1))
        layer = SoftmaxConfig().build(site).to(device)
        tokens = torch.randn(1, settings.tokens, settings.dim, device=device)
        with torch.no_grad():
            found = _properties(lambda given: layer.weights(given, (settings.tokens, 1)), tokens)
            looked = attention_inputs(*packaged_vit(device))
            trained = [_logit_variance(attention, given) for attention, given, _ in looked]
        return {
            **found,
            "widths": list(settings.widths),
            **_variances(settings.widths, settings.pairs, power=0.5),
            "trained": trained,
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Variance by width, and by layer of the trained model."""
        widths = results[0]["widths"]
        lines = [line("q k", widths, results, "raw"), line("q k / sqrt(d)", widths, results, "scaled")]
        text = "Variance of the logits of random queries and keys with unit variance, by their width."
        layers = [float(index) for index in range(len(results[0]["trained"]))]
        trained = [line("packaged model", layers, results, "trained")]
        other = "Variance of the scaled logits by layer of the trained packaged model: training leaves the value of 1."
        return (
            chart("Variance by width", lines, text, x="width of a head", y="variance", log_x=True, log_y=True),
            chart("Variance in a trained model", trained, other, x="layer", y="variance", log_y=True),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """All properties."""
        widths = results[0]["widths"]
        laws = {name: estimate([exponent(widths, result[name]) for result in results]) for name in ("raw", "scaled")}
        trained = estimate([sum(result["trained"]) / len(result["trained"]) for result in results])
        return judge(
            [
                Check(text="rows sum to 1", found=estimate(by_seed(results, "row_error")), most=1e-5),
                Check(text="no weight is negative", found=estimate(by_seed(results, "smallest")), least=0.0),
                Check(
                    text="permuted tokens give the permuted matrix",
                    found=estimate(by_seed(results, "permutation_error")),
                    most=1e-5,
                ),
                Check(
                    text="scaled, the exponent of the variance in d_k is 0",
                    found=laws["scaled"],
                    least=-0.05,
                    most=0.05,
                ),
                Check(text="unscaled, it is 1", found=laws["raw"], least=0.95, most=1.05),
                Check(
                    text="in the trained model the variance is still about 1 (mean over layers)",
                    found=trained,
                    least=0.5,
                    most=2.0,
                    essential=False,
                ),
            ],
            note="The variance formula needs independent queries and keys, which training does not keep",
        )

    def true_case(self) -> Sequence[Results]:
        """Softmax of an inner product, and scaled logits."""
        return [_case(lambda given: (given @ given.transpose(1, 2)).softmax(dim=-1)[:, None], power=0.5)]

    def false_case(self) -> Sequence[Results]:
        """Columns instead of rows normalised, a bias that depends on the place, logits divided by d_k."""
        bias = torch.linspace(-1, 1, 16)
        return [_case(lambda given: (given @ given.transpose(1, 2) + bias).softmax(dim=1)[:, None], power=1.0)]


def _properties(weights: Callable[[Tensor], Tensor], tokens: Tensor) -> dict[str, float]:
    """Errors of rows and of permutations: tokens 1 N D, weights 1 A N N."""
    found, order = weights(tokens), torch.randperm(tokens.shape[1], device=tokens.device)
    permuted = weights(tokens[:, order])
    return {
        "row_error": float((found.sum(dim=-1) - 1).abs().max()),
        "smallest": float(found.min()),
        "permutation_error": float((permuted - found[:, :, order][..., order]).abs().max()),
    }


def _variances(widths: Sequence[int], pairs: int, *, power: float) -> dict[str, list[float]]:
    """The variance of q k, and of q k / d^power, for standard normal queries and keys."""
    raw = [float((torch.randn(pairs, width) * torch.randn(pairs, width)).sum(dim=1).var()) for width in widths]
    return {"raw": raw, "scaled": [value / width ** (2 * power) for value, width in zip(raw, widths, strict=True)]}


def _logit_variance(attention: torch.nn.Module, tokens: Tensor) -> float:
    """The mean variance of the scaled logits within a row: the part that the softmax sees."""
    queries, keys, _ = attention.heads(tokens)  # type: ignore[operator]  # B A N d each
    logits = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    return float(logits.var(dim=-1).mean())


def _case(weights: Callable[[Tensor], Tensor], *, power: float) -> Results:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = _properties(weights, torch.randn(1, 16, 4))
        widths = [8, 32, 128]
        return {**found, "widths": widths, **_variances(widths, 20_000, power=power), "trained": [1.0, 1.0]}
