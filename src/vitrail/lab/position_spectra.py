"""The frequencies of position codes: sines and cosines, rotations, and codes that a model learned."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Count, Positive
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import (
    ARCHITECTURE,
    FOUNDATIONS,
    Check,
    Experiment,
    Results,
    Settings,
    Verdict,
    judge,
    limit,
)
from vitrail.lab.plots import by_name, chart
from vitrail.lab.small_training import batches, fashion, fit
from vitrail.lab.subjects import random_vit
from vitrail.layers.patch import Grid
from vitrail.layers.position import LearnedPosition, frequencies, sincos_1d, sincos_2d
from vitrail.layers.rope import RopeConfig
from vitrail.models.vit import ViT
from vitrail.report import Section
from vitrail.report.intervals import scipy_stats

_THETA = 10_000.0
_IMAGE = 28  # pixels
_NOISE = 0.1  # of the readout, as a share of the root mean square of a code
_CODES = {
    "sincos1d": "sin-cos of the index",
    "sincos2d": "sin-cos of row and column",
    "rope": "angles of RoPE",
    "untrained": "learned, before training",
    "trained": "learned, trained",
}


@dataclass(frozen=True, kw_only=True)
class PositionSpectraSettings(Settings):
    """Codes on the grid of 28 x 28 pixels; the learned ones are those of a ViT trained on Fashion-MNIST."""

    patch: Count = 4
    dim: Count = 64
    depth: Count = 2
    num_heads: Count = 2
    steps: Count = 150
    batch: Count = 64
    rate: Positive = 3e-3


class PositionSpectra(Experiment):
    """Energy by frequency, order by distance, and which waves over the grid a linear map can read from a code."""

    name = "position-spectra"
    title = "Position codes and their frequencies"
    claim = (
        "Sines and cosines encode positions with many frequencies, rotary codes keep relative positions, and learned "
        "codes can learn the two dimensions of the image."
    )
    source = f"{FOUNDATIONS}; Positional Encoding Strategies. {ARCHITECTURE}; Key Design Choices: Positional Encoding"
    prediction = (
        "Products of sin-cos codes and of rotated queries and keys depend on the offset alone; nearer patches have "
        "more similar codes (rank correlation above 0.5), for trained codes too, which training makes smooth; waves of "
        "all frequencies can be read."
    )
    falsifier = "A product that depends on the place, or trained codes with the spectrum of random ones."
    quick = PositionSpectraSettings()
    full = PositionSpectraSettings(patch=2, dim=192, depth=6, num_heads=3, steps=3000, batch=256, rate=1e-3)
    seconds = 7.0
    seeds = 3

    def measure(self, settings: PositionSpectraSettings, *, seed: int, device: torch.device) -> Results:
        """Statistics of all codes, the largest dependence on the place of two, and the frequencies of sin-cos."""
        side = _IMAGE // settings.patch
        grid, dim = (side, side), settings.dim
        model = random_vit(
            dim=dim, depth=settings.depth, num_heads=settings.num_heads, image_size=_IMAGE, patch=settings.patch,
            num_classes=10, channels=1,
        ).to(device)  # fmt: skip
        tables = {"sincos1d": sincos_1d(grid, dim=dim, theta=_THETA), "sincos2d": _sincos(grid, dim)}
        rope = RopeConfig(theta=_THETA).build(dim // settings.num_heads, grid=grid, num_prefix=0)
        tables["rope"] = torch.cat([rope.cos, rope.sin], dim=1)
        tables["untrained"] = _learned(model)
        fit(
            model,
            batches(fashion(device)[0], settings.batch),
            steps=settings.steps,
            rate=settings.rate,
            warm_up=settings.steps // 10,
        )
        tables["trained"] = _learned(model)
        return {
            "side": side,
            **_statistics(tables, side),
            "relative": {"sincos2d": _sincos_error(grid, dim), "rope": _rope_error(grid, dim // settings.num_heads)},
            **_band(side, dim),
        }

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Energy, and what can be read, by frequency."""
        side = results[0]["side"]
        steps = [step / side for step in range(1, side // 2 + 1)]
        text = "Energy of a code by the larger of its two frequencies, as a share; codes less their mean."
        other = f"Share of a plane wave over the grid that a linear map reads from a code with {_NOISE:.0%} of noise."
        return (
            chart("Spectra", by_name(results, steps, _CODES, "spectrum"), text, x="cycles a patch", y="share"),
            chart("Readable waves", by_name(results, steps, _CODES, "readable"), other, x="cycles a patch", y="R^2"),
        )

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Relative positions and order by distance; then how much of the band is used."""

        def order(name: str) -> list[float]:
            return by_seed(results, "order", name)

        slow = {name: by_seed(results, "spectrum", name, 0) for name in ("trained", "untrained")}
        gained = [after / before for after, before in zip(slow["trained"], slow["untrained"], strict=True)]
        return judge(
            [
                Check(
                    text="products of 2-D sin-cos codes depend on the offset alone (largest error)",
                    found=estimate(by_seed(results, "relative", "sincos2d")),
                    most=1e-4,
                ),
                Check(
                    text="so do products of rotated queries and keys",
                    found=estimate(by_seed(results, "relative", "rope")),
                    most=1e-4,
                ),
                Check(
                    text="2-D sin-cos: nearer is more similar (rank correlation)",
                    found=estimate(order("sincos2d")),
                    least=0.5,
                ),
                Check(
                    text="training makes learned codes smooth (energy of the lowest frequency, trained / untrained)",
                    found=estimate(gained),
                    least=1.5,
                ),
                limit(
                    "trained codes: nearer is more similar (rank correlation)", estimate(order("trained")), least=0.5
                ),
                limit("sin-cos of the index: nearer is more similar", estimate(order("sincos1d")), least=0.5),
                limit(
                    "half of the 2-D sin-cos channels make half a turn over the grid or more",
                    estimate(by_seed(results, "turning")),
                    least=0.5,
                    unit="share",
                ),
                limit("they reach half a cycle a patch", estimate(by_seed(results, "highest")), least=0.45),
                limit(
                    "the highest waves can be read from them (R^2)",
                    estimate(by_seed(results, "readable", "sincos2d", -1)),
                    least=0.9,
                ),
            ],
            note="With theta = 10,000, most channels of sin-cos codes hardly change over the grid of an image",
        )

    def true_case(self) -> Sequence[Results]:
        """Waves of all frequencies of the grid, evenly."""
        return [_case(even=True)]

    def false_case(self) -> Sequence[Results]:
        """Random vectors."""
        return [_case(even=False)]


def _sincos(grid: Grid, dim: int) -> Tensor:
    return sincos_2d(grid, dim=dim, theta=_THETA, endpoint=False)


def _learned(model: ViT) -> Tensor:
    """The codes of the patches N D."""
    position = model.position[0]
    assert isinstance(position, LearnedPosition)  # noqa: S101  (the default of a ViT)
    return position.table.detach().clone().cpu()


def _statistics(tables: Mapping[str, Tensor], side: int) -> Mapping[str, object]:
    """Order by distance, spectrum and readable waves of each code N D."""
    centred = {name: (table - table.mean(dim=0)).double() for name, table in tables.items()}
    return {
        "order": {name: order(table, side) for name, table in centred.items()},
        "spectrum": {name: spectrum(table, side) for name, table in centred.items()},
        "readable": {name: readable(table, side) for name, table in centred.items()},
    }


def order(codes: Tensor, side: int) -> float:
    """The rank correlation (scipy) between the cosine of two codes of N D and how near they are on the grid."""
    unit = torch.nn.functional.normalize(codes, dim=1)
    rows, columns = torch.triu_indices(len(codes), len(codes), offset=1)
    return float(scipy_stats().spearmanr((unit @ unit.T)[rows, columns], -_distances(side)[rows, columns]).statistic)


def _distances(side: int) -> Tensor:
    at = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    return torch.cdist(at, at)


def _steps(side: int) -> Tensor:
    """The larger of the two frequencies of each wave of the grid, in cycles a side: N."""
    one = (torch.fft.fftfreq(side).abs() * side).round()
    return torch.maximum(one[:, None], one[None]).flatten()


def spectrum(codes: Tensor, side: int) -> list[float]:
    """The share of the energy of codes N D by frequency, from one cycle a side to the highest; without the mean."""
    energy = torch.fft.fft2(codes.unflatten(0, (side, side)), dim=(0, 1)).abs().square().sum(dim=2).flatten()
    steps = _steps(side)
    by_step = [float(energy[steps == step].sum()) for step in range(1, side // 2 + 1)]
    return [value / sum(by_step) for value in by_step]


def readable(codes: Tensor, side: int) -> list[float]:
    """R^2 of the best linear readout of waves along one axis from codes N D with white noise, by frequency.

    The readout minimises |t - P w|^2 + N s^2 |w|^2 for a wave t, codes P and noise of deviation s in each channel.
    """
    gram = codes @ codes.T
    noise = _NOISE**2 * codes.square().sum()  # N times the variance of D channels, for codes scaled by sqrt(D)
    read = torch.linalg.solve(gram + noise / codes.shape[1] * torch.eye(len(codes)).double(), gram)
    at = torch.arange(side).double()
    found = []
    for step in range(1, side // 2 + 1):
        wave = (2 * math.pi * step * at / side).cos()
        shares = []
        for target in (wave[:, None].expand(side, side), wave[None].expand(side, side)):
            flat = target.flatten()
            shares.append(float(flat @ read @ flat / flat.square().sum()))
        found.append(sum(shares) / 2)
    return found


def _sincos_error(grid: Grid, dim: int) -> float:
    """How far products of 2-D sin-cos codes are from the sum of cosines of their offsets, as a share of the largest."""
    codes = _sincos(grid, dim).double()
    bands = frequencies(dim // 4, _THETA).double()
    at = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).double()
    offsets = at[:, None] - at[None]  # N N 2
    expected = (offsets[..., None] * bands).cos().sum(dim=(-2, -1))
    return float((codes @ codes.T - expected).abs().max() / expected.max())


def _rope_error(grid: Grid, head_dim: int) -> float:
    """How far products of a rotated query and key are from the mean of all places with the same offset, as a share."""
    rope = RopeConfig().build(head_dim, grid=grid, num_prefix=0)
    count = grid[0] * grid[1]
    query, key = torch.randn(2, 1, 1, 1, head_dim).expand(2, 1, 1, count, head_dim)
    products = (rope(query, grid)[0, 0] @ rope(key, grid)[0, 0].T).double().numpy()  # N N
    at = np.stack(np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), indexing="ij"), axis=-1).reshape(-1, 2)
    offsets = (at[:, None] - at[None]).reshape(-1, 2)
    _, which = np.unique(offsets, axis=0, return_inverse=True)
    flat = products.reshape(-1)
    means = np.bincount(which.reshape(-1), flat) / np.bincount(which.reshape(-1))
    return float(np.abs(flat - means[which.reshape(-1)]).max() / np.abs(flat).max())


def _band(side: int, dim: int) -> Mapping[str, float]:
    """The share of the frequencies of 2-D sin-cos that make half a turn over a side, and the highest, in cycles."""
    bands = frequencies(dim // 4, _THETA)
    return {
        "turning": float((bands * (side - 1) >= math.pi).float().mean()),
        "highest": float(bands.max()) / (2 * math.pi),
    }


def _case(*, even: bool) -> Results:
    """Codes of the waves of an 8 x 8 grid, stronger where they are slow; or random codes, with nothing relative."""
    side = 8
    steps = torch.arange(side).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        noise = torch.randn(2, side**2, 64).double()
    angles = math.pi / side * steps[:, None] * torch.arange(1, side + 1)
    strength = 0.7 ** torch.arange(side).double()
    axis = torch.cat([strength * angles.cos(), strength * angles.sin()], dim=1)
    codes = torch.cat([axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)], dim=2).flatten(0, 1)
    tables = dict.fromkeys(_CODES, codes) | {"untrained": noise[0]}
    if not even:
        tables = dict.fromkeys(_CODES, noise[1]) | {"untrained": noise[0]}
    error = 0.0 if even else 1.0
    return {
        "side": side,
        **_statistics(tables, side),
        "relative": {"sincos2d": error, "rope": error},
        "turning": 0.9 if even else 0.0,
        "highest": 0.5 if even else 0.0,
    }
