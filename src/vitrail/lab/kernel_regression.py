"""Attention as kernel regression (Nadaraya 1964, Watson 1964): what is exact, and what is not."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Count, Positive
from vitrail.lab.estimates import by_seed, estimate, exponent
from vitrail.lab.experiment import NEW_APPROACH, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.plots import chart, line
from vitrail.lab.subjects import attention_inputs, natural_noise, packaged_vit, random_vit
from vitrail.layers.attention.base import MultiHead
from vitrail.models.vit import ViT
from vitrail.report import Section
from vitrail.report.intervals import scipy_part

_MODELS = {"random": "random weights", "trained": "packaged model"}
_EXACT = 1e-4
_LIMITS = {
    "gaussian": ("the kernel is a Gaussian of the distance (relative error)", 0.1),
    "asymmetry": ("the kernel is symmetric (antisymmetric share)", 0.1),
    "negative": ("it is positive definite (negative share of its spectrum)", 0.01),
}
_QUERIES = 200

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # q ... M d, k ... N d, v ... N c, scale -> ... M c


@dataclass(frozen=True, kw_only=True)
class KernelRegressionSettings(Settings):
    """Regression on a circle from `counts` noisy points, and the attention of two ViTs.

    The bandwidth is `width` times n^(-1/5), the rate that is best for a function with two derivatives.
    """

    counts: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    repeats: Count = 40
    noise: Positive = 0.3
    width: Positive = 0.35
    dim: Count = 192
    depth: Count = 6
    num_heads: Count = 3
    images: Count = 4


class KernelRegression(Experiment):
    """Kernels are computed in double precision by numpy and scipy, attention by the library."""

    name = "kernel-regression"
    title = "Attention as kernel regression"
    claim = (
        "Attention is kernel regression: the output is the Nadaraya-Watson estimate with the kernel exp(q k / sqrt(d)) "
        "and learns the values as a function of the keys."
    )
    source = f"{NEW_APPROACH}; Extension Points for Advanced Topics: Mathematical Foundations"
    prediction = (
        "The identity is exact, and with keys of one length the kernel is a Gaussian; on a circle, the error of the "
        "estimate falls as n^-0.8 (exponent -0.95 to -0.65); the kernels of models are symmetric and positive, too."
    )
    falsifier = "An error of the identity above 1e-4, or an error of regression that falls at another rate."
    quick = KernelRegressionSettings()
    full = KernelRegressionSettings(
        counts=(256, 1024, 4096, 16_384), repeats=100, dim=768, depth=12, num_heads=12, images=16
    )
    seconds = 1.5

    def measure(self, settings: KernelRegressionSettings, *, seed: int, device: torch.device) -> Results:
        """Errors of the identities, of regression by the number of points, and properties of the kernels of models."""
        model = random_vit(
            dim=settings.dim, depth=settings.depth, num_heads=settings.num_heads, image_size=32, patch=4
        ).to(device)
        return {
            "counts": list(settings.counts),
            "regression": regression(_attention, settings),
            "random": _look(model, natural_noise(settings.images, 32).to(device)),
            "trained": _look(*packaged_vit(device)),
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """The error of regression by the number of points, and the properties of kernels by layer."""
        lines = [line("attention", results[0]["counts"], results, "regression", "errors")]
        text = (
            "Mean square error of attention as a regression on a circle, by the number of keys; n^-0.8 is the theory."
        )
        shown = [chart("Regression", lines, text, x="keys", y="mean square error", log_x=True, log_y=True)]
        titles = {
            "asymmetry": "Energy of the antisymmetric part of the logits, as a share; 0 for a symmetric kernel.",
            "gaussian": "Relative difference between attention and a Gaussian kernel of the same width, by layer.",
        }
        for key, other in titles.items():
            lines = [
                line(title, [float(at) for at in range(len(results[0][name][key]))], results, name, key)
                for name, title in _MODELS.items()
            ]
            shown.append(chart(key.capitalize(), lines, other, x="layer", y="share"))
        return shown

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The identities and the rate; then what a kernel in the sense of the theory would have."""

        def worst(name: str, key: str) -> list[float]:
            return [max(result[name][key]) for result in results]

        def mean(name: str, key: str) -> list[float]:
            return [sum(result[name][key]) / len(result[name][key]) for result in results]

        rates = [exponent(result["counts"], result["regression"]["errors"]) for result in results]
        checks = [
            Check(
                text=f"the identity holds ({title}; relative error)",
                found=estimate(worst(name, "identity")),
                most=_EXACT,
            )
            for name, title in _MODELS.items()
        ]
        checks += [
            Check(
                text="with keys of one length, attention is a regression with scipy's von Mises kernel (error)",
                found=estimate(by_seed(results, "regression", "von_mises")),
                most=_EXACT,
            ),
            Check(
                text="the error of regression falls as n^-0.8 (exponent)",
                found=estimate(rates),
                least=-0.95,
                most=-0.65,
            ),
        ]
        checks += [
            limit(f"{text} ({title}; mean over layers)", estimate(mean(name, key)), most=most)
            for name, title in _MODELS.items()
            for key, (text, most) in _LIMITS.items()
        ]
        note = (
            "The identity is the definition of attention; learned maps make its kernel neither symmetric nor a distance"
        )
        return judge(checks, note=note)

    def true_case(self) -> Sequence[Results]:
        """Queries that are the keys, all of one length."""
        return [_case(_attention)]

    def false_case(self) -> Sequence[Results]:
        """Sigmoids in place of the softmax: weights that do not sum to one."""
        return [_case(lambda q, k, v, scale: (scale * q @ k.transpose(-2, -1)).sigmoid() @ v)]


def nadaraya_watson(kernel: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The weighted means of values ... N c with kernels ... M N."""
    estimates: np.ndarray = kernel @ values / kernel.sum(axis=-1, keepdims=True)
    return estimates


def regression(attend: Attend, settings: KernelRegressionSettings) -> Mapping[str, object]:
    """Mean square errors of sin(3x) by the number of noisy points, and the distance from scipy's von Mises kernel."""
    truth_at = torch.linspace(0, 2 * math.pi, _QUERIES + 1)[:-1]
    errors, von_mises = [], 0.0
    for count in settings.counts:
        at = 2 * math.pi * torch.rand(settings.repeats, count)
        values = (3 * at).sin() + settings.noise * torch.randn(settings.repeats, count)
        sharpness = (settings.width * count**-0.2) ** -2
        queries = _on_circle(truth_at).expand(settings.repeats, -1, -1)
        found = attend(queries, _on_circle(at), values[..., None], sharpness)[..., 0].double()
        errors.append(float((found - (3 * truth_at.double()).sin()).square().mean()))
        offsets = truth_at.double().numpy()[:, None] - at[0].double().numpy()[None]
        kernel = scipy_part("stats").vonmises.pdf(offsets, sharpness)
        expected = nadaraya_watson(kernel, values[0].double().numpy()[:, None])[:, 0]
        von_mises = max(von_mises, _relative(found[0].numpy(), expected))
    return {"errors": errors, "von_mises": von_mises}


def _on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@torch.no_grad()
def _look(model: ViT, images: Tensor) -> Mapping[str, list[float]]:
    """The properties of the kernel of each layer."""
    rows = []
    for layer, tokens, _ in attention_inputs(model, images):
        assert isinstance(layer, MultiHead)  # noqa: S101  (plain ViTs)
        rows.append(properties(*layer.heads(tokens), attend=_attention))
    return {key: [row[key] for row in rows] for key in rows[0]}


def properties(q: Tensor, k: Tensor, v: Tensor, *, attend: Attend) -> Mapping[str, float]:
    """How far attention over B A N d is from a regression, its kernel from a Gaussian, symmetry and positivity."""
    width = q.shape[-1]
    output = attend(q, k, v, width**-0.5).double().cpu().numpy()
    queries, keys, values = (part.double().cpu().numpy() for part in (q, k, v))
    logits = queries @ keys.swapaxes(-2, -1) / math.sqrt(width)  # B A N N
    distances = ((queries[..., :, None, :] - keys[..., None, :, :]) ** 2).sum(axis=-1)
    gaussian = np.exp(-(distances - distances.min(axis=-1, keepdims=True)) / (2 * math.sqrt(width)))
    even, odd = (logits + logits.swapaxes(-2, -1)) / 2, (logits - logits.swapaxes(-2, -1)) / 2
    even_energy = ((even - even.mean(axis=(-2, -1), keepdims=True)) ** 2).sum()
    spectrum = np.linalg.eigvalsh(np.exp(even - even.max(axis=(-2, -1), keepdims=True)))
    return {
        "identity": _relative(output, nadaraya_watson(np.exp(logits - logits.max()), values)),
        "gaussian": _relative(output, nadaraya_watson(gaussian, values)),
        "asymmetry": float((odd**2).sum() / ((odd**2).sum() + even_energy)),
        "negative": float(-spectrum[spectrum < 0].sum() / np.abs(spectrum).sum()),
    }


def _case(attend: Attend) -> Results:
    """Attention over points on a sphere that are queries and keys, and the regression on a circle."""
    settings = KernelRegressionSettings(counts=(256, 1024, 4096))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        points = F.normalize(torch.randn(1, 2, 32, 8), dim=-1)
        found = properties(points, points, torch.randn(1, 2, 32, 8), attend=attend)
        kernels = {key: [value] for key, value in found.items()}
        return {
            "counts": list(settings.counts),
            "regression": regression(attend, settings),
            "random": kernels,
            "trained": kernels,
        }
