"""A PAC-Bayes bound of trained ViTs: in a random subspace with quantised coordinates, and in all parameters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitrail.config import Count, CountFromZero
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import FOUNDATIONS, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.fitting import Fit, fit, open_pictures, shuffled
from vitrail.lab.pac_bayes_bounds import BOUNDS, coded_bits, complexity
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier, parameters, small_vit
from vitrail.lab.small_training import accuracy
from vitrail.lab.tuned import chosen
from vitrail.report import Section, Table

_DELTA = 0.05
_LEVELS = (3, 5, 7, 9, 13, 17, 25)  # of a quantised coordinate
_NAMES = {"source": "the source's form", "kl": "kl inverse", "catoni": "Catoni"}


@dataclass(frozen=True, kw_only=True)
class PacBayesSettings(Settings):
    """A small ViT, trained in random subspaces of several dimensions and in all of its parameters."""

    data: str = "demo"
    train: CountFromZero = 0
    test: CountFromZero = 2000
    dim: Count = 32
    depth: Count = 2
    patch: Count = 7
    dimensions: tuple[Count, ...] = (50, 150, 450)
    how: Fit = Fit(steps=400, batch=64, rate=2e-2, weight_decay=0.0)
    plain: Fit = Fit(steps=400, batch=64, rate=2e-3)


class Subspace(nn.Module):
    """A model whose parameters are their start plus a fixed random map of a few coordinates (arXiv:1804.08838)."""

    def __init__(self, model: nn.Module, dimensions: int) -> None:
        super().__init__()
        self.names = [name for name, _ in model.named_parameters()]
        self.shapes = [parameter.shape for parameter in model.parameters()]
        device = next(model.parameters()).device
        start = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        self.register_buffer("start", start)
        self.register_buffer("ways", torch.randn(len(start), dimensions, device=device) / dimensions**0.5)
        self.coordinates = nn.Parameter(torch.zeros(dimensions, device=device))
        self.model = [model]  # in a list: its parameters are not those that learn

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B K."""
        whole = self.get_buffer("start") + self.get_buffer("ways") @ self.coordinates
        parts = whole.split([shape.numel() for shape in self.shapes])
        values = {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}
        found: Tensor = functional_call(self.model[0], values, (images,))
        return found


class PacBayes(Experiment):
    """The prior gives a model the probability 2^-bits of its description; the seed of the subspace is fixed before."""

    name = "pac-bayes"
    title = "A PAC-Bayes bound of a trained ViT"
    claim = "The generalisation error of a ViT is bounded by its training error plus a PAC-Bayes term of KL and n."
    source = f"{FOUNDATIONS}; Generalization Theory (PAC-Bayesian Bounds for ViTs)"
    prediction = (
        "In a random subspace of some hundred dimensions, with quantised coordinates, a trained ViT has a bound that "
        "lies above its test error and below the error of a guess (90 %)."
    )
    falsifier = "The test error exceeds the bound, or no such model has a bound below the error of a guess."
    quick = PacBayesSettings()
    full = PacBayesSettings(
        data="fashion-mnist",
        test=0,
        dim=64,
        depth=4,
        patch=4,
        dimensions=(100, 250, 500, 1000, 2000),
        how=Fit(steps=2000, batch=256, rate=1e-2, weight_decay=0.0),
        plain=Fit(steps=2000, batch=256, rate=1e-3),
    )
    seconds = 20.0
    seeds = 3

    def measure(self, settings: PacBayesSettings, *, seed: int, device: torch.device) -> Results:
        """Errors, bits and bounds by the dimension of the subspace, and for all parameters in 16 bits."""
        train, test = open_pictures(settings.data, settings.train, settings.test, device)
        side, count = train.images.shape[2], len(train.classes)
        scale = 0.29, 0.35  # fixed before the data are seen, as the prior must be
        rows = []
        for dimensions in settings.dimensions:
            body = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=side,
                             channels=train.images.shape[1], num_classes=10)  # fmt: skip
            _random_head(body)
            model = Subspace(Classifier(body, *scale).to(device), dimensions)
            fit(model, shuffled(train, settings.how.batch), settings.how)
            least: dict[str, Any] = {}
            learned = model.coordinates.detach().clone()
            for levels in _LEVELS:
                symbols, values = quantised(learned, levels)
                with torch.no_grad():
                    model.coordinates.copy_(values)
                bits = coded_bits(symbols, levels) + math.log2(len(_LEVELS) * len(settings.dimensions)) + 16
                error = 1 - accuracy(model, train)
                found = _bounded(error, bits, count) | {"levels": levels}
                if not least or found["kl"] < least["kl"]:
                    least = found | {"test": 1 - accuracy(model, test), "dimensions": dimensions}
            rows.append(least)
        body = small_vit(dim=settings.dim, depth=settings.depth, patch=settings.patch, image_size=side,
                         channels=train.images.shape[1], num_classes=10)  # fmt: skip
        plain = Classifier(body, *scale).to(device)
        fit(plain, shuffled(train, settings.plain.batch), settings.plain)
        whole = _bounded(1 - accuracy(plain, train), 16.0 * parameters(plain), count)
        whole |= {"test": 1 - accuracy(plain, test), "dimensions": parameters(plain)}
        best = min(rows, key=lambda row: row["kl"])
        size = chosen(best["dimensions"], settings.dimensions)
        return {"subspaces": rows, "best": best, "subspace": size, "plain": whole, "images": count}

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Errors and bounds by dimension."""
        x = [float(row["dimensions"]) for row in results[0]["subspaces"]]
        keys = {"train": "training error", "test": "test error", **_NAMES}
        stored = [{key: [row[key] for row in result["subspaces"]] for key in keys} for result in results]
        text = "Errors of the quantised model and bounds that hold with 95 % confidence."
        picture = chart("Bounds by dimension of the subspace", [line(keys[key], x, stored, key) for key in keys], text,
                        x="dimensions", y="error", log_x=True)  # fmt: skip
        columns = {"model": "", "bits": "si", **dict.fromkeys(keys.values(), "share")}
        rows = [
            {"model": title, "bits": estimate(by_seed(results, name, "bits")).value}
            | {keys[key]: estimate(by_seed(results, name, key)).value for key in keys}
            for name, title in {"best": "best subspace", "plain": "all parameters, 16 bits each"}.items()
        ]
        return (Table("Errors and bounds", columns, rows), picture)  # type: ignore[arg-type]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Whether the bounds hold, and whether they say something."""
        room = [result["best"]["kl"] - result["best"]["test"] for result in results]
        checks = [
            Check(text="the test error lies below the bound (kl inverse, best subspace)",
                  found=estimate(room), least=0.0, unit="share"),
            Check(text="the bound is below the error of a guess, 90 %",
                  found=estimate(by_seed(results, "best", "kl")), most=0.9, unit="share"),
            Check(text="the form that the source prints is below it, too",
                  found=estimate(by_seed(results, "best", "source")), most=0.9, unit="share", essential=False),
            Check(text="the bound of the same ViT with all parameters in 16 bits is below it",
                  found=estimate(by_seed(results, "plain", "kl")), most=0.9, unit="share", essential=False),
            Check(text="the bound is at most 10 points above the test error",
                  found=estimate(room), most=0.1, unit="share", essential=False),
        ]  # fmt: skip
        return judge(checks)

    def true_case(self) -> Sequence[Results]:
        """A model of 20 bits that errs in 5 % of a million images."""
        row = _bounded(0.05, 20.0, 1_000_000) | {"test": 0.05, "dimensions": 10}
        size = chosen(10, [5, 10, 20])
        return [{"subspaces": [row], "best": row, "subspace": size, "plain": row, "images": 1_000_000}]

    def false_case(self) -> Sequence[Results]:
        """A model that has learned random labels by heart."""
        row = _bounded(0.0, 1e6, 1000) | {"test": 0.9, "dimensions": 60_000}
        return [{"subspaces": [row], "best": row, "plain": row, "images": 1000}]


def quantised(coordinates: Tensor, levels: int) -> tuple[list[int], Tensor]:
    """Symbols from 0 to levels - 1, and the values that they stand for: even steps, whose width fits 16 bits."""
    half = levels // 2
    best: tuple[float, list[int], Tensor] | None = None
    largest = float(coordinates.abs().max()) or 1.0
    for share in (0.4, 0.55, 0.7, 0.85, 1.0):
        step = float(torch.tensor(share * largest / half, dtype=torch.float16))
        symbols = (coordinates / step).round().clamp(-half, half)
        missed = float((symbols * step - coordinates).square().sum())
        if best is None or missed < best[0]:
            best = missed, [int(symbol) + half for symbol in symbols.tolist()], symbols * step
    assert best is not None  # noqa: S101  (there are shares)
    return best[1], best[2]


def _random_head(model: nn.Module) -> None:
    """A head that starts at zero would hide the subspace of all other layers at first."""
    nn.init.normal_(model.get_submodule("head").weight, std=0.1)  # type: ignore[arg-type]


def _bounded(error: float, bits: float, count: int) -> dict[str, float]:
    """A training error with the bits of the model and each bound."""
    cost = complexity(bits)
    return {"train": error, "bits": bits} | {name: bound(error, cost, count, _DELTA) for name, bound in BOUNDS.items()}
