"""Receptive fields by depth, from gradients (arXiv:1701.04128): CNN and ViT, with random and trained weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.lab.estimates import by_seed, estimate, exponent
from vitrail.lab.experiment import NEW_APPROACH, PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.plots import chart, line
from vitrail.lab.subjects import attention_inputs, packaged_vit
from vitrail.models.backbone import Backbone
from vitrail.models.vit import ViT
from vitrail.packaged import PHOTOS
from vitrail.report import Group, Section
from vitrail.runs.trained import open_model

_MODELS = {"vit": "ViT", "cnn": "CNN"}
_WEIGHTS = {"random": "random weights", "trained": "trained"}


@dataclass(frozen=True, kw_only=True)
class ReceptiveFieldSettings(Settings):
    """A plain stack of 3 x 3 convolutions, measured at `depths`, besides the packaged models."""

    width: Count = 16
    depths: tuple[int, ...] = (1, 2, 4, 8, 16, 24)
    images: Count = 8


class ReceptiveField(Experiment):
    """A field is where pixels have a gradient; its radius is the root mean square distance, weighted by gradients."""

    name = "receptive-field"
    title = "Receptive fields by depth"
    claim = (
        "The receptive field of a CNN grows slowly, to 2L + 1 pixels and as the root of L effectively; that of a ViT "
        "is global from the first layer on."
    )
    source = (
        f"{NEW_APPROACH}; Receptive Field Evolution (6. Attention vs Convolution), Complexity Comparison. "
        f"{PRINCIPLES}; Global vs. Local Information Processing"
    )
    prediction = (
        "Gradients of L convolutions reach 2L + 1 pixels, with a radius that grows as L^0.5 (exponent 0.4 to 0.6); "
        "those of a ViT reach every pixel after one block, nearly evenly (radius 0.8 of that of an even field or more)."
    )
    falsifier = "A pixel without a gradient after the first block of a ViT, or another extent of the convolutions."
    quick = ReceptiveFieldSettings()
    full = ReceptiveFieldSettings(width=64, depths=(1, 2, 4, 8, 16, 32, 48), images=64)
    seconds = 5.5

    def measure(self, settings: ReceptiveFieldSettings, *, seed: int, device: torch.device) -> Results:
        """Extent and radius of plain convolutions; reach and radius by block of the packaged models, trained or not."""
        vit, images = packaged_vit(device)
        images = images[: settings.images]
        cnn = open_model(PHOTOS).to(device).backbone.eval()
        size = cnn.config.image_size
        photos = F.interpolate(images, size=size, mode="bilinear")
        return {
            "depths": list(settings.depths),
            "plain": _plain(settings, device),
            "vit": {"random": fields(_fresh(vit, device), images), "trained": fields(vit, images)},
            "cnn": {"random": fields(_fresh(cnn, device), photos[:4]), "trained": fields(cnn, photos[:4])},
            "rollout": _rollout(vit, images),
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Radius by depth: plain convolutions, then both models with random and trained weights."""
        depths = results[0]["depths"]
        plain = [line("extent", depths, results, "plain", "extent"), line("radius", depths, results, "plain", "radius")]
        text = "Extent (side) and effective radius of the field of L convolutions of 3 x 3, random weights, in pixels."
        charts: list[Section] = []
        for weights, title in _WEIGHTS.items():
            lines = []
            for name, called in _MODELS.items():
                count = len(results[0][name][weights]["radius"])
                at = [(index + 1) / count for index in range(count)]
                lines.append(line(called, at, results, name, weights, "radius"))
            if weights == "trained":
                count = len(results[0]["rollout"])
                at = [(index + 1) / count for index in range(count)]
                lines.append(line("rollout of the ViT", at, results, "rollout"))
            other = "Effective radius of the central token, 1 where all pixels of the image weigh the same."
            charts.append(chart(f"Radius, {title}", lines, other, x="share of the blocks", y="radius / even"))
        return (
            chart("Plain convolutions", plain, text, x="layers", y="pixels", log_x=True, log_y=True),
            Group("Packaged models", charts, columns=2),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Extents, which are a matter of architecture; then how much of them is used."""
        depths = results[0]["depths"]
        extents = [
            max(abs(side - (2 * depth + 1)) for side, depth in zip(result["plain"]["extent"], depths, strict=True))
            for result in results
        ]
        power = [exponent(depths[1:], result["plain"]["radius"][1:]) for result in results]
        checks = [
            Check(text="L convolutions reach 2L + 1 pixels (largest error)", found=estimate(extents), most=0.0),
            Check(
                text="one block of a ViT reaches all pixels (share)",
                found=estimate(by_seed(results, "vit", "random", "reach", 0)),
                least=0.999,
                unit="share",
            ),
            limit("the radius of convolutions grows as L^0.5 (exponent)", estimate(power), least=0.4, most=0.6),
        ]
        for weights, title in _WEIGHTS.items():
            first, last = (by_seed(results, "vit", weights, "radius", at) for at in (0, -1))
            text = f"after one block, the field of the ViT is nearly as wide as an even one ({title})"
            checks.append(limit(text, estimate(first), least=0.8))
            grown = [after / before for before, after in zip(first, last, strict=True)]
            checks.append(limit(f"it does not grow with depth ({title}; last / first)", estimate(grown), most=1.1))
            ratio = [
                ours / theirs for ours, theirs in zip(last, by_seed(results, "cnn", weights, "radius", -1), strict=True)
            ]
            checks.append(
                limit(
                    f"in the last block it is wider than that of the CNN ({title}; ratio)", estimate(ratio), least=1.0
                )
            )
        rolled = [
            roll / last
            for roll, last in zip(
                by_seed(results, "rollout", -1), by_seed(results, "vit", "trained", "radius", -1), strict=True
            )
        ]
        checks.append(
            limit(
                "attention rollout gives the radius of gradients (ratio in the last block)",
                estimate(rolled),
                least=0.8,
                most=1.25,
            )
        )
        return judge(checks, note="What can be reached is global at once; what is used widens block by block")

    def true_case(self) -> Sequence[Results]:
        """Convolutions with equal weights, and attention that is uniform in the first layer already."""
        return [_case(even=True)]

    def false_case(self) -> Sequence[Results]:
        """Attention in windows of a quarter of the image, and dilated convolutions."""
        return [_case(even=False)]


def energy(outputs: Tensor, images: Tensor) -> Tensor:
    """The mean square gradient H W of outputs B D, with random signs, by the pixels of images B C H W."""
    signs = torch.randint(0, 2, outputs.shape, device=outputs.device) * 2 - 1
    (gradient,) = torch.autograd.grad((signs * outputs).sum(), images, retain_graph=True)
    return gradient.double().square().sum(dim=1).mean(dim=0)


def radius(weights: Tensor, centre: tuple[float, float]) -> float:
    """The root mean square distance from a pixel, weighted by H W."""
    rows, columns = (torch.arange(size, device=weights.device, dtype=torch.float64) for size in weights.shape)
    squares = (rows - centre[0]).square()[:, None] + (columns - centre[1]).square()[None]
    return math.sqrt(float((weights * squares).sum() / weights.sum()))


def fields(model: Backbone, images: Tensor) -> Mapping[str, list[float]]:
    """By block, for the central token: the share of pixels with a gradient, and the radius by that of an even field."""
    model.requires_grad_(False)
    given = images.clone().requires_grad_()
    reach, radii = [], []
    for features in model.intermediates(given):
        middle, centre = _middle(features.grid, images.shape[-2:])
        found = energy(features.patches[:, middle], given)
        reach.append(float((found > 0).double().mean()))
        radii.append(radius(found, centre) / radius(torch.ones_like(found), centre))
    return {"reach": reach, "radius": radii}


def _middle(grid: tuple[int, int], size: Sequence[int]) -> tuple[int, tuple[float, float]]:
    """The index of the central token, and the pixel at its centre."""
    row, column = grid[0] // 2, grid[1] // 2
    centre = ((row + 0.5) * size[0] / grid[0] - 0.5, (column + 0.5) * size[1] / grid[1] - 0.5)
    return row * grid[1] + column, centre


def _fresh(model: Backbone, device: torch.device) -> Backbone:
    """The same architecture with random weights."""
    return type(model)(model.config).to(device).eval()


def _plain(settings: ReceptiveFieldSettings, device: torch.device) -> Mapping[str, list[float]]:
    """Extent and radius in pixels of a stack of convolutions, in an image that is larger than both."""
    side = 2 * max(settings.depths) + 3
    images = torch.randn(settings.images, 1, side, side, device=device, requires_grad=True)
    extent, radii, tokens = [], [], images
    for depth in range(1, max(settings.depths) + 1):
        layer = nn.Conv2d(tokens.shape[1], settings.width, 3, padding=1, device=device).requires_grad_(False)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        tokens = layer(tokens).relu()
        if depth in settings.depths:
            found = energy(tokens[:, :, side // 2, side // 2], images)
            extent.append(float((found > 0).any(dim=0).sum()))
            radii.append(radius(found, (side // 2, side // 2)))
    return {"extent": extent, "radius": radii}


@torch.no_grad()
def _rollout(model: ViT, images: Tensor) -> list[float]:
    """By block: the radius of the central row of attention rollout, by that of an even field."""
    rolled: Tensor | None = None
    radii = []
    for layer, tokens, grid in attention_inputs(model, images):
        weights = layer.weights(tokens, grid).double().mean(dim=1)  # B N N
        step = (weights + torch.eye(weights.shape[-1], dtype=torch.float64, device=weights.device)) / 2
        rolled = step if rolled is None else step @ rolled
        middle, _ = _middle(grid, grid)
        row = rolled[:, middle].mean(dim=0).unflatten(0, grid)
        centre = (float(grid[0] // 2), float(grid[1] // 2))
        radii.append(radius(row, centre) / radius(torch.ones_like(row), centre))
    return radii


def _case(*, even: bool) -> Results:
    """Closed forms; an even field has the radius 1, and weights of a third each step of L have a variance of 2/3."""
    depths = [1, 2, 4, 8, 16]
    step = 1 if even else 2
    plain = {
        "extent": [2 * step * depth + 1 for depth in depths],
        "radius": [step * math.sqrt(2 * depth * 2 / 3) for depth in depths],
    }
    token: dict[str, Any] = {"reach": [1.0 if even else 1 / 16] * 4, "radius": [1.0 if even else 0.25] * 4}
    narrow = {"reach": [0.1, 0.2, 0.3, 0.4], "radius": [0.1, 0.2, 0.3, 0.4]}
    return {
        "depths": depths,
        "plain": plain,
        "vit": dict.fromkeys(_WEIGHTS, token),
        "cnn": dict.fromkeys(_WEIGHTS, narrow),
        "rollout": token["radius"],
    }
