"""The smallest object that can be detected, by patch size: means of patches, linear probes, ViTs, ideal observer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Count, Positive
from vitrail.lab.estimates import by_seed, estimate, exponent
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.plots import chart, line
from vitrail.lab.small_training import fit
from vitrail.lab.subjects import random_vit
from vitrail.report import Section
from vitrail.report.charts_series import Series
from vitrail.report.intervals import scipy_part, scipy_stats

_SINGLE = {"average": "mean of the patch", "linear": "best linear probe of the patch"}
_WHOLE = {"vit": "trained ViT", "ideal": "ideal observer"}
_HALF = 0.4, 0.6  # what an exponent of one half may be
_PIECE = 500  # images

Score = Callable[[Tensor], Tensor]  # images B side side -> a number for each


@dataclass(frozen=True, kw_only=True)
class SmallestObjectSettings(Settings):
    """Discs of contrast 1 in white noise; sizes, patches and images are measured in pixels.

    Means and probes look at one patch, with the disc anywhere inside it, at the middle one of `single_noises`. ViTs
    and the ideal observer look at whole images, at the middle one of `noises`; where noise varies, at the middle patch.
    """

    single_patches: tuple[int, ...] = (8, 12, 16, 24, 32)
    single_noises: tuple[float, ...] = (0.5, 1.0, 2.0)
    image_size: Count = 16
    patches: tuple[int, ...] = (2, 4, 8, 16)
    noises: tuple[float, ...] = (0.5, 0.7, 1.0)
    sizes: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    images: Count = 1000
    dim: Count = 48
    depth: Count = 2
    steps: Count = 150
    batch: Count = 96
    rate: Positive = 3e-3


class SmallestObject(Experiment):
    """The threshold is the size at which an image with the disc scores higher than one without in 75 % of all pairs."""

    name = "smallest-object"
    title = "The smallest object that a patch shows"
    claim = (
        "The smallest object that a ViT can detect is sqrt(gamma sigma p / contrast): it grows with the patch size p."
    )
    source = f"{PRINCIPLES}; From Pixels to Tokens: The ViT Input Pipeline"
    prediction = (
        "Where a token is the mean of its patch, the threshold grows as p^0.5 and sigma^0.5 (exponents of 0.4 to 0.6); "
        "so it does for the best linear probe and for trained ViTs, for which the mean is a limit."
    )
    falsifier = "An exponent of the mean outside of 0.4 to 0.6."
    quick = SmallestObjectSettings()
    full = SmallestObjectSettings(
        image_size=32, patches=(2, 4, 8, 16, 32), noises=(0.35, 0.5, 0.7, 1.0, 1.4), images=10_000, dim=192, depth=6,
        steps=4000, batch=512, rate=5e-4,
    )  # fmt: skip
    seconds = 20.0
    seeds = 3

    def measure(self, settings: SmallestObjectSettings, *, seed: int, device: torch.device) -> Results:
        """Thresholds by patch and by noise for all detectors, and the curves of the ViTs."""
        singles = settings.single_patches
        patch, noise = singles[len(singles) // 2], settings.single_noises[len(settings.single_noises) // 2]
        found: dict[str, Mapping[str, list[float]]] = {}
        for kind in _SINGLE:
            found[kind] = {
                "patches": [_single(settings, kind, side, noise) for side in singles],
                "noises": [_single(settings, kind, patch, other) for other in settings.single_noises],
            }
        side = settings.patches[len(settings.patches) // 2 - 1]
        middle = settings.noises[len(settings.noises) // 2]
        by_patch = [_trained(settings, one, middle, device) for one in settings.patches]
        by_noise = [
            by_patch[settings.patches.index(side)] if noise == middle else _trained(settings, side, noise, device)
            for noise in settings.noises
        ]
        found["vit"] = {
            "patches": [threshold(settings.sizes, hits) for hits in by_patch],
            "noises": [threshold(settings.sizes, hits) for hits in by_noise],
        }
        ideal = [threshold(settings.sizes, _ideal(settings, noise)) for noise in settings.noises]
        found["ideal"] = {"patches": [ideal[len(ideal) // 2]] * len(settings.patches), "noises": ideal}
        whole = [_pairs(_mean, size, settings.image_size, middle, settings.images) for size in settings.sizes]
        return {
            "single_patches": list(singles),
            "single_noises": list(settings.single_noises),
            "patches": list(settings.patches),
            "noises": list(settings.noises),
            "sizes": list(settings.sizes),
            "curves": by_patch,
            "thresholds": found,
            "whole": threshold(settings.sizes, whole),
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Thresholds by patch and by noise, and the curves that they are read from."""
        first = results[0]
        single = [
            line(title, first["single_patches"], results, "thresholds", kind, "patches")
            for kind, title in _SINGLE.items()
        ]
        middle = first["single_noises"][len(first["single_noises"]) // 2]
        law = [(side, math.sqrt(gamma() * middle * side)) for side in first["single_patches"]]
        single.append(Series("the law", law, dashed=True))
        whole = [
            line(title, first["patches"], results, "thresholds", kind, "patches") for kind, title in _WHOLE.items()
        ]
        noisy = [line(title, first["noises"], results, "thresholds", kind, "noises") for kind, title in _WHOLE.items()]
        curves = []
        for index, side in enumerate(first["patches"]):
            hits = [{"hits": result["curves"][index]} for result in results]
            curves.append(line(f"patch {side}", first["sizes"], hits, "hits"))
        text = "Size of a disc that is detected in 75 % of all pairs, by the side of the patch"
        return (
            chart("One patch", single, f"{text}, in one patch.", x="patch", y="size", log_x=True, log_y=True),
            chart("Whole images", whole, f"{text}, in whole images.", x="patch", y="size", log_x=True, log_y=True),
            chart("Noise", noisy, "The same by the noise.", x="noise / contrast", y="size", log_x=True, log_y=True),
            chart("Trained ViTs", curves, "Share of pairs that ViTs order correctly.", x="size", y="share"),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Exponents of the mean, then of detectors that learn."""
        first = results[0]
        axes = {kind: "single_" if kind in _SINGLE else "" for kind in (*_SINGLE, *_WHOLE)}

        def power(kind: str, of: str) -> list[float]:
            return [exponent(first[f"{axes[kind]}{of}"], result["thresholds"][kind][of]) for result in results]

        vit = by_seed(results, "thresholds", "vit", "patches", -1)
        mean = by_seed(results, "whole")
        least, most = _HALF
        checks = [
            Check(
                text=f"{title}: exponent in {symbol} is 0.5",
                found=estimate(power(kind, of)),
                least=least,
                most=most,
                essential=kind == "average",
            )
            for kind, title in {**_SINGLE, "vit": _WHOLE["vit"]}.items()
            for of, symbol in {"patches": "p", "noises": "sigma"}.items()
        ]
        return judge(
            [
                *checks,
                limit(
                    "a ViT with one patch does not see smaller objects than the mean (ratio of thresholds)",
                    estimate([ours / theirs for ours, theirs in zip(vit, mean, strict=True)]),
                    least=0.95,
                ),
            ],
            note="The law is that of means of patches; the patch embedding of a trained ViT is not a mean",
        )

    def true_case(self) -> Sequence[Results]:
        """Detectors that see the mean alone, in closed form."""
        return [_case(lambda size, side, noise: math.pi / 4 * size**2 / (noise * side))]

    def false_case(self) -> Sequence[Results]:
        """Matched filters at a known position, for which the patch does not matter."""
        return [_case(lambda size, side, noise: math.sqrt(math.pi) / 2 * size / noise)]


def gamma() -> float:
    """The constant of the law for discs and a threshold of 75 %, from the normal distribution."""
    return float(math.sqrt(2) * scipy_stats().norm.ppf(0.75) * 4 / math.pi)


def discs(sizes: Tensor, side: int) -> Tensor:
    """Discs with these diameters B at random places inside of images B side side, with smooth edges of one pixel."""
    box = sizes.ceil()
    corner = (torch.rand(2, len(sizes)) * (side - box + 1)).floor()  # 2 B
    centre = corner + (box - 1) / 2
    steps = torch.arange(side)
    rows, columns = steps - centre[0, :, None], steps - centre[1, :, None]  # B side each
    distance = (rows[:, :, None].square() + columns[:, None].square()).sqrt()
    return (sizes[:, None, None] / 2 - distance + 0.5).clamp(0, 1)


def threshold(sizes: Sequence[float], hits: Sequence[float]) -> float:
    """The size with 75 % hits: a Weibull function from 0.5 to 1 through the points, by least squares (scipy)."""

    def weibull(size: np.ndarray, at: float, steepness: float) -> np.ndarray:
        return 1 - 0.5 * 2 ** -((size / at) ** steepness)

    fitted, _ = scipy_part("optimize").curve_fit(
        weibull, np.asarray(sizes), np.asarray(hits), p0=(np.mean(sizes), 2.0), bounds=((0.1, 0.3), (100.0, 20.0))
    )
    return float(fitted[0])


def share(higher: Tensor, lower: Tensor) -> float:
    """The share of pairs in which the first score is higher; ties count half (Mann and Whitney's U)."""
    statistic = scipy_stats().mannwhitneyu(higher.cpu().numpy(), lower.cpu().numpy()).statistic
    return float(statistic) / (len(higher) * len(lower))


def _pairs(score: Score, size: float, side: int, noise: float, count: int) -> float:
    """The share of correct pairs for discs of one size; `score` takes images B side side."""
    objects = discs(torch.full((count,), size), side)
    empty = noise * torch.randn(count, side, side)
    return share(score(objects + noise * torch.randn(count, side, side)), score(empty))


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=(1, 2))


def _single(settings: SmallestObjectSettings, kind: str, side: int, noise: float) -> float:
    """The threshold of one patch: by its mean, or by the best linear probe, which is the mean disc in white noise."""
    sizes = [size for size in settings.sizes if size <= side]
    if kind == "average":
        score: Score = _mean
    else:
        drawn = torch.tensor(sizes)[torch.randint(len(sizes), (4000,))]
        template = discs(drawn, side).mean(dim=0)

        def score(images: Tensor) -> Tensor:
            return (images * template).sum(dim=(1, 2))

    return threshold(sizes, [_pairs(score, size, side, noise, settings.images) for size in sizes])


def _ideal(settings: SmallestObjectSettings, noise: float) -> list[float]:
    """Correct pairs by size for the likelihood ratio, which knows size, contrast and noise, but not the place."""

    def log_ratio(images: Tensor) -> Tensor:
        matched = torch.nn.functional.conv2d(images[:, None], disc[None, None]).flatten(1) / noise**2
        return (matched - disc.square().sum() / (2 * noise**2)).logsumexp(dim=1)

    found = []
    for size in settings.sizes:
        disc = discs(torch.tensor([size]), math.ceil(size))[0]
        found.append(_pairs(log_ratio, size, settings.image_size, noise, settings.images))
    return found


def _trained(settings: SmallestObjectSettings, patch: int, noise: float, device: torch.device) -> list[float]:
    """Correct pairs by size for a ViT that is trained to tell images with discs of all sizes from those without."""
    side, sizes = settings.image_size, torch.tensor(settings.sizes)
    model = random_vit(
        dim=settings.dim, depth=settings.depth, num_heads=3, image_size=side, patch=patch, num_classes=2, channels=1
    ).to(device)

    def draw() -> tuple[Tensor, Tensor]:
        classes = torch.arange(settings.batch) % 2
        objects = discs(sizes[torch.randint(len(sizes), (settings.batch,))], side)
        images = classes[:, None, None] * objects + noise * torch.randn(settings.batch, side, side)
        return images[:, None].to(device), classes.to(device)

    @torch.no_grad()
    def score(images: Tensor) -> Tensor:
        logits = torch.cat([model(part[:, None].to(device)) for part in images.split(_PIECE)])
        return logits[:, 1] - logits[:, 0]

    fit(model, draw, steps=settings.steps, rate=settings.rate, warm_up=settings.steps // 10)
    return [_pairs(score, size, side, noise, settings.images) for size in settings.sizes]


def _case(distance: Callable[[float, float, float], float]) -> Results:
    """Results of detectors with a signal of `distance` deviations, by size, patch and noise."""
    sizes = [1.0 + 0.5 * index for index in range(12)]
    patches, noises = [8, 16, 32], [0.5, 1.0, 2.0]
    normal = scipy_stats().norm

    def hits(side: float, noise: float) -> list[float]:
        return [float(normal.cdf(distance(size, side, noise) / math.sqrt(2))) for size in sizes]

    found = {
        "patches": [threshold(sizes, hits(side, 1.0)) for side in patches],
        "noises": [threshold(sizes, hits(16, noise)) for noise in noises],
    }
    return {
        "single_patches": patches,
        "single_noises": noises,
        "patches": patches,
        "noises": noises,
        "sizes": sizes,
        "curves": [hits(side, 1.0) for side in patches],
        "thresholds": dict.fromkeys((*_SINGLE, *_WHOLE), found),
        "whole": found["patches"][-1],
    }
