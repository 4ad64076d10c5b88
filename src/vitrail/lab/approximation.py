"""How well ViTs of growing width and depth approximate a fixed continuous function of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Count, Positive
from vitrail.lab import small_training
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import FOUNDATIONS, Check, Experiment, Results, Settings, Verdict, judge, limit
from vitrail.lab.fitting import Fit
from vitrail.lab.plots import chart, line
from vitrail.lab.power_law import growth
from vitrail.lab.small_models import parameters, small_vit
from vitrail.lab.small_training import Labelled, outputs
from vitrail.report import Group, Section

_AXES = {"widths": "width", "depths": "depth"}


@dataclass(frozen=True, kw_only=True)
class ApproximationSettings(Settings):
    """A sum of `waves` cosines of an image of side x side pixels; widths at the middle depth, and the reverse."""

    side: Count = 4
    patch: Count = 2
    waves: Count = 8
    frequency: Positive = 6.0  # length of the vector of a wave
    widths: tuple[Count, ...] = (8, 16, 32, 64)
    depths: tuple[Count, ...] = (1, 2, 4)
    width: Count = 32
    depth: Count = 2
    test: Count = 4096
    how: Fit = Fit(steps=400, batch=256, rate=3e-3, weight_decay=0.0)


class Approximation(Experiment):
    """Images are uniform noise, new at every step, so that the error is that of approximation and of training."""

    name = "approximation"
    title = "Approximation by width and depth"
    claim = "A ViT of sufficient depth and width approximates any continuous function of an image, even at its worst."
    source = f"{FOUNDATIONS}; Expressivity and Universal Approximation"
    prediction = (
        "The error of trained ViTs for a smooth function falls as a power of the width and of the depth, its root mean "
        "square and its largest value alike."
    )
    falsifier = "The error does not fall with the width."
    quick = ApproximationSettings()
    full = ApproximationSettings(
        side=8,
        patch=2,
        widths=(16, 32, 64, 128, 256),
        depths=(1, 2, 4, 8),
        width=64,
        depth=4,
        test=65_536,
        how=Fit(steps=2000, batch=1024, rate=1e-3, weight_decay=0.0),
    )
    seconds = 30.0
    seeds = 3

    def measure(self, settings: ApproximationSettings, *, seed: int, device: torch.device) -> Results:
        """Errors by width and by depth, as shares of the deviation of the function."""
        pixels = settings.side**2
        ways = F.normalize(torch.randn(settings.waves, pixels, device=device), dim=1) * settings.frequency
        phases = 6.3 * torch.rand(settings.waves, device=device)

        def function(images: Tensor) -> Tensor:
            waves: Tensor = torch.cos(images.flatten(1) @ ways.T + phases).sum(dim=1, keepdim=True)
            return waves

        test = torch.rand(settings.test, 1, settings.side, settings.side, device=device)
        truth = function(test)
        mean, deviation = truth.mean(), truth.std()

        def draw(batch: int) -> Labelled:
            images = torch.rand(batch, 1, settings.side, settings.side, device=device)
            return Labelled(images, (function(images) - mean) / deviation)

        found: dict[str, Any] = {}
        sizes = {
            "widths": [(width, settings.depth) for width in settings.widths],
            "depths": [(settings.width, depth) for depth in settings.depths],
        }
        for axis, pairs in sizes.items():
            runs = []
            for width, depth in pairs:
                model = small_vit(dim=width, depth=depth, patch=settings.patch, image_size=settings.side, channels=1,
                                  num_classes=1).to(device)  # fmt: skip
                how = settings.how
                small_training.fit(
                    model, lambda: draw(settings.how.batch), steps=how.steps, rate=how.rate,
                    warm_up=round(how.warmup * how.steps), weight_decay=how.weight_decay, loss=F.mse_loss,
                )  # fmt: skip
                missed = outputs(model, test) - (truth - mean) / deviation
                runs.append({"rms": float(missed.square().mean().sqrt()), "largest": float(missed.abs().max()),
                             "parameters": parameters(model)})  # fmt: skip
            found[axis] = _axis([float(pair[axis == "depths"]) for pair in pairs], runs)
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Both errors by width and by depth."""
        charts = [
            chart(f"Error by {title}",
                  [line("root mean square", results[0][axis]["sizes"], results, axis, "rms"),
                   line("largest", results[0][axis]["sizes"], results, axis, "largest")],
                  "In deviations of the function, on new images.", x=title, y="error", log_x=True, log_y=True)
            for axis, title in _AXES.items()
        ]  # fmt: skip
        return (Group("Errors", charts, columns=2),)

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The exponents of the errors, and how small they become."""

        def power(axis: str, kind: str) -> Any:
            return estimate(by_seed(results, axis, "powers", kind))

        return judge(
            [
                Check(text="the root mean square error falls with the width: exponent below -0.1",
                      found=power("widths", "rms"), most=-0.1),
                Check(text="so does the largest error", found=power("widths", "largest"), most=-0.1),
                limit("the error falls with the depth: exponent below -0.1", power("depths", "rms"), most=-0.1),
                limit("the widest has an error of at most 10 % of the deviation",
                      estimate(by_seed(results, "widths", "rms", -1)), most=0.1, unit="share"),
                limit("its largest error is at most 10 %, too",
                      estimate(by_seed(results, "widths", "largest", -1)), most=0.1, unit="share"),
            ],
            note="A theorem says that weights exist; what is measured here is what training finds",
        )  # fmt: skip

    def true_case(self) -> Sequence[Results]:
        """Errors that fall as 1 / size."""
        return [_made(-1.0)]

    def false_case(self) -> Sequence[Results]:
        """Errors that stay."""
        return [_made(0.0)]


def _axis(sizes: Sequence[float], runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    errors = {kind: [run[kind] for run in runs] for kind in ("rms", "largest")}
    powers = {kind: growth(sizes, values) for kind, values in errors.items()}
    return {"sizes": list(sizes), "parameters": [run["parameters"] for run in runs], **errors, "powers": powers}


def _made(power: float) -> Results:
    sizes = [8.0, 16.0, 32.0, 64.0]
    runs = [{"rms": 0.4 * size**power, "largest": 0.8 * size**power, "parameters": 1.0} for size in sizes]
    return {axis: _axis(sizes, runs) for axis in _AXES}
