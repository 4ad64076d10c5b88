"""Scaling laws: the loss of small ViTs by parameters, images and compute, and what such fits can tell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from vitrail.config import Count, CountFromZero
from vitrail.lab.estimates import Estimate, by_seed, estimate
from vitrail.lab.experiment import (
    FOUNDATIONS,
    THEORY,
    Check,
    Experiment,
    Results,
    Settings,
    Verdict,
    condition,
    judge,
    limit,
)
from vitrail.lab.fitting import Fit, first, fit, mean_loss, open_pictures, shuffled
from vitrail.lab.plots import chart, line
from vitrail.lab.power_law import POWERS, PowerLaw, fit_log_line, fit_power_law, growth, left_by_power
from vitrail.lab.small_models import Classifier, macs, parameters, small_vit
from vitrail.lab.small_training import Labelled, accuracy
from vitrail.report import Group, Section, Table
from vitrail.report.charts_series import Series

_NO_FALL = 10.0  # of the fall: counts as the miss where there is none
_CLOSE = 1e-3
_AXES = {"parameters": "parameters", "images": "training images", "compute": "MACs of training"}


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(Settings):
    """Widths with all images, and the width in the middle with fewer; the loss is the lowest on held-out images."""

    data: str = "demo"
    train: CountFromZero = 9000
    test: CountFromZero = 1500
    dims: tuple[Count, ...] = (8, 12, 16, 24, 32, 48, 64)
    counts: tuple[Count, ...] = (280, 560, 1125, 2250, 4500)
    depth: Count = 2
    patch: Count = 7
    looks: Count = 10
    how: Fit = Fit(steps=300, rate=2e-3)


class ScalingLaws(Experiment):
    """Power laws with an offset, fitted to each seed; the largest size is kept back and predicted.

    A law of the size is not one of the length of training: the verdict is undecided where half the steps give another
    loss.
    """

    name = "scaling"
    title = "Scaling laws: loss by parameters, images and compute"
    claim = "The performance of a ViT follows a power law in the size of the model and in the number of images."
    source = f"{FOUNDATIONS}; ViT Scaling Laws; Data Efficiency Challenges; and {THEORY}; Performance Scaling Laws"
    prediction = (
        "Loss falls as E + A x^-b with b above 0 for parameters, images and compute, up to the largest size; the law "
        "leaves less than 5 % of the variance, and misses a size that was kept back by less than 10 % of the fall of "
        "the loss, and by less than a straight line in log x does."
    )
    falsifier = "The loss does not fall, or rises again, or the law misses the size that was kept back."
    quick = ScalingSettings()
    full = ScalingSettings(
        data="cifar10",
        train=25_000,
        test=0,
        dims=(32, 48, 64, 96, 128, 192, 256),
        counts=(780, 1560, 3125, 6250, 12_500),
        depth=4,
        patch=4,
        looks=15,
        how=Fit(steps=1500, batch=256, rate=1e-3, precision="bf16"),
    )
    seconds = 30.0
    seeds = 3

    def measure(self, settings: ScalingSettings, *, seed: int, device: torch.device) -> Results:
        """The lowest held-out loss by width and by number of images, with the compute at each look."""
        train, test = open_pictures(settings.data, settings.train, settings.test, device)
        total = len(train.classes)
        found: dict[str, Any] = {"widths": [], "counts": []}
        for dim in settings.dims:
            found["widths"].append(_run(settings, dim, train, test) | {"dim": dim, "images": total})
        width = settings.dims[len(settings.dims) // 2]
        for count in settings.counts:
            found["counts"].append(_run(settings, width, first(train, count), test) | {"images": count})
        found["counts"].append(next(run for run in found["widths"] if run["dim"] == width))
        half = replace(settings, how=replace(settings.how, steps=max(settings.how.steps // 2, 1)))
        found["half"] = {
            "parameters": found["widths"][-1]["loss"] / _run(half, settings.dims[-1], train, test)["loss"],
            "images": found["counts"][-1]["loss"] / _run(half, width, train, test)["loss"],
        }
        found["fits"] = {axis: _fitted(*_points(found, axis)) for axis in _AXES}
        found["split"] = _split(found["widths"])
        found["accuracy_left"] = _accuracy_left(found["widths"])
        found["formula"] = _formula(settings, width, found["counts"][0]["macs"])
        return found

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """Loss by each axis with the fitted law, and the exponents with their intervals."""
        charts = []
        for axis, title in _AXES.items():
            x, _ = _points(results[0], axis)
            stored = [{"y": _points(result, axis)[1]} for result in results]
            laws = [PowerLaw(*(result["fits"][axis][key] for key in ("floor", "scale", "power"))) for result in results]
            points = [(at, fmean(law(at) for law in laws)) for at in x]
            fitted = Series("fitted laws (mean over seeds)", points, dashed=True)
            text = "Lowest held-out cross-entropy; the band is the 95 % interval over seeds."
            charts.append(
                chart(f"Loss by {title}", [line("measured", x, stored, "y"), fitted], text,
                      x=title, y="loss", log_x=True)
            )  # fmt: skip
        columns = dict.fromkeys(("loss by", "exponent", "95 % interval", "offset E"), "")
        columns |= dict.fromkeys(("variance left", "miss", "starts of the fit that end there"), "share")
        rows = [_row(results, axis, title) for axis, title in _AXES.items()]
        table = Table("Fits of E + A x^-b", columns, rows)  # type: ignore[arg-type]
        budgets = [point["compute"] for point in results[0]["split"]["frontier"]]
        best = [{"best": [point["parameters"] for point in result["split"]["frontier"]]} for result in results]
        text = "The width with the lowest loss for each budget, among those that were trained."
        split = chart("Best size by compute", [line("parameters", budgets, best, "best")], text,
                      x="MACs of training", y="parameters", log_x=True, log_y=True)  # fmt: skip
        return (table, Group("Loss", (*charts, split), columns=2))

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The exponents, the size that was kept back, and rival laws."""
        checks = []
        for axis, title in _AXES.items():
            main = axis != "compute"
            checks += [
                Check(
                    text=f"the exponent of the loss by {title} is above 0.05",
                    found=estimate(by_seed(results, "fits", axis, "power")),
                    least=0.05,
                    essential=main,
                ),
                Check(
                    text=f"a law fitted without the largest size misses its loss by at most 10 % of the fall from the "
                    f"smallest size to the largest ({title})",
                    found=estimate([_missed(result, axis) for result in results]),
                    most=0.1,
                    unit="share",
                    essential=main,
                ),
                Check(
                    text=f"the fit leaves at most 5 % of the variance ({title})",
                    found=estimate(by_seed(results, "fits", axis, "left")),
                    most=0.05,
                    unit="share",
                    essential=False,
                ),
                Check(
                    text=f"it misses that loss by less than a line in log x, the law of another section ({title})",
                    found=estimate(by_seed(results, "fits", axis, "against_log")),
                    least=0.0,
                    unit="share",
                    essential=False,
                ),
            ]
        checks += [  # not by compute, where a loss is the lowest so far and cannot rise
            Check(text=f"the largest size has a lower loss than the one in the middle ({title})",
                  found=estimate([_later_fall(result, axis) for result in results]), least=0.0)
            for axis, title in _AXES.items() if axis != "compute"
        ]  # fmt: skip
        checks += _limits(results)
        share = estimate(by_seed(results, "split", "exponent"))
        return judge(
            checks,
            conditions=_conditions(results),
            note=f"The best size grows as compute to the {_range(share)} among the widths tried",
        )

    def true_case(self) -> Sequence[Results]:
        """Losses that are 0.3 + 5 x^-0.4 exactly."""
        return [_made(lambda x: 0.3 + 5 * x**-0.4)]

    def false_case(self) -> Sequence[Results]:
        """Losses that do not fall."""
        return [_made(lambda x: 1.0 + 0.01 * (x % 3))]


def _run(settings: ScalingSettings, dim: int, train: Labelled, test: Labelled) -> dict[str, Any]:
    """One training: the lowest held-out loss so far at each look, with the MACs spent until then."""
    channels, side = train.images.shape[1:3]
    body = small_vit(
        dim=dim, depth=settings.depth, patch=settings.patch, image_size=side, channels=channels,
        num_classes=int(test.classes.max()) + 1,
    )  # fmt: skip
    model = Classifier(body, float(train.images.mean()), float(train.images.std())).to(train.images.device)
    each = macs(body, train.images.shape[1:])
    how = replace(settings.how, batch=min(settings.how.batch, len(train.classes)))
    every = max(how.steps // settings.looks, 1)
    looks: list[dict[str, float]] = []

    def look(step: int) -> None:
        if step % every == 0:
            lowest = min([mean_loss(model, test), *(before["loss"] for before in looks)])
            looks.append({"compute": 3.0 * each * step * how.batch, "loss": lowest})

    fit(model, shuffled(train, how.batch), how, after=look)
    return {
        "parameters": parameters(body), "macs": each, "loss": looks[-1]["loss"], "accuracy": accuracy(model, test),
        "looks": looks,
    }  # fmt: skip


def _points(found: Results, axis: str) -> tuple[list[float], list[float]]:
    """The sizes and losses along an axis; by compute, the lowest loss of any width at each of the common budgets."""
    if axis == "compute":
        frontier = found["split"]["frontier"] if "split" in found else _split(found["widths"])["frontier"]
        return [point["compute"] for point in frontier], [point["loss"] for point in frontier]
    runs = found["widths"] if axis == "parameters" else found["counts"]
    return [float(run[axis]) for run in runs], [float(run["loss"]) for run in runs]


def _later_fall(found: Results, axis: str) -> float:
    """By how much the loss falls from the size in the middle to the largest."""
    _, losses = _points(found, axis)
    return losses[len(losses) // 2] - losses[-1]


def _missed(found: Results, axis: str) -> float:
    """How far the law without the largest size misses its loss, as a share of the fall over all sizes."""
    _, losses = _points(found, axis)
    fall = losses[0] - losses[-1]
    return min(abs(found["fits"][axis]["miss"]) * losses[-1] / fall, _NO_FALL) if fall > 0 else _NO_FALL


def _at_a_bound(found: Results, axis: str) -> float:
    """1 where the exponent or the offset of the law is at an end of what the fit allows."""
    law, (_, losses) = found["fits"][axis], _points(found, axis)
    low, high = POWERS
    inside = low + _CLOSE < law["power"] < high - _CLOSE and _CLOSE < law["floor"] < min(losses) - _CLOSE
    return 0.0 if inside else 1.0


def _fitted(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """The law through all points, how far the law through all but the last misses it, and the rival."""
    whole, part, rival = fit_power_law(x, y), fit_power_law(x[:-1], y[:-1]), fit_log_line(x[:-1], y[:-1])
    miss, other = (law(x[-1]) / y[-1] - 1 for law in (part.law, rival))
    return {
        "floor": whole.law.floor, "scale": whole.law.scale, "power": whole.law.power, "left": whole.left,
        "miss": miss, "against_log": abs(other) - abs(miss), "agree": whole.agree,
    }  # fmt: skip


def _split(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The width with the lowest loss for each budget of compute, and the exponent of its size by compute."""
    first = max(run["looks"][0]["compute"] for run in runs)
    last = max(run["looks"][-1]["compute"] for run in runs)
    budgets = [first * (last / first) ** (step / 7) for step in range(8)]
    frontier = []
    for budget in budgets:
        reached = [
            (min(look["loss"] for look in run["looks"] if look["compute"] <= budget * 1.001), run["parameters"])
            for run in runs
        ]
        loss, best = min(reached)
        frontier.append({"compute": budget, "loss": loss, "parameters": best})
    sizes = [point["parameters"] for point in frontier]
    return {"frontier": frontier, "exponent": growth(budgets, sizes)}


def _accuracy_left(runs: Sequence[dict[str, Any]]) -> float:
    """The share of the variance of log accuracy that a straight line in log parameters leaves."""
    return left_by_power([run["parameters"] for run in runs], [run["accuracy"] for run in runs])


def _formula(settings: ScalingSettings, dim: int, each: int) -> dict[str, float]:
    """The source's C = 6 N L d^2 + 12 L d^2 n for training on N tokens, over the operations (2 a MAC) counted."""
    images = settings.how.steps * settings.how.batch
    side = 28 if settings.data in ("demo", "fashion-mnist") else 32
    tokens = (side // settings.patch) ** 2
    claimed = 6 * images * tokens * settings.depth * dim**2 + 12 * settings.depth * dim**2 * tokens
    return {"ratio": claimed / (6.0 * each * images)}


def _row(results: Sequence[Results], axis: str, title: str) -> dict[str, Any]:
    power = estimate(by_seed(results, "fits", axis, "power"))
    return {
        "loss by": title,
        "exponent": power.value,
        "95 % interval": _range(power),
        "offset E": estimate(by_seed(results, "fits", axis, "floor")).value,
        "variance left": estimate(by_seed(results, "fits", axis, "left")).value,
        "miss": estimate(by_seed(results, "fits", axis, "miss")).value,
        "starts of the fit that end there": estimate(by_seed(results, "fits", axis, "agree")).value,
    }


def _range(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _made(law: Callable[[float], float]) -> Results:
    """Results of seven widths and six numbers of images whose losses follow a law."""
    runs = []
    for step in range(7):
        size = 1000.0 * 2**step
        looks = [{"compute": size * 1e5 * part, "loss": law(size * part)} for part in (0.25, 0.5, 1.0)]
        run = {"parameters": round(size), "images": size, "loss": law(size), "accuracy": 0.3 * size**0.05}
        runs.append(run | {"looks": looks})
    found: dict[str, Any] = {"widths": runs, "counts": runs[:6]}
    found["split"] = {
        "frontier": [{"compute": 1e5 * run["images"], "loss": run["loss"], "parameters": 1000} for run in runs],
        "exponent": 0.5,
    }
    fits = {axis: _fitted(*_points(found, axis)) for axis in _AXES}
    return found | {
        "fits": fits,
        "accuracy_left": _accuracy_left(runs),
        "formula": {"ratio": 1.0},
        "half": {"parameters": 1.0, "images": 1.0},
    }


def _limits(results: Sequence[Results]) -> list[Check]:
    """What other sections say, and whether the fit can be trusted."""
    found = [
        limit("accuracy is a power of the parameters, the law of a third section (share of variance left)",
              estimate(by_seed(results, "accuracy_left")), most=0.05, unit="share"),
        limit("the source's formula for compute is within 10 % of the operations that are counted",
              estimate(by_seed(results, "formula", "ratio")), least=0.9, most=1.1),
    ]  # fmt: skip
    found += [
        limit(f"the fit ends at the same law from most of its starts ({title})",
              estimate([min(by_seed(results, "fits", axis, "agree"))]), least=0.5, unit="share")
        for axis, title in _AXES.items() if axis != "compute"
    ]  # fmt: skip
    found += [
        limit(f"no number of the law is at an end of what the fit allows, exponents from {POWERS[0]:g} to "
              f"{POWERS[1]:g} and offsets from 0 to the lowest loss (share of the seeds where one is, {title})",
              estimate([_at_a_bound(result, axis) for result in results]), most=0.0, unit="share")
        for axis, title in _AXES.items()
    ]  # fmt: skip
    return found


def _conditions(results: Sequence[Results]) -> list[Check]:
    """That the optimiser has converged."""
    return [
        condition(f"twice the steps lower the loss by at most 5 %, as a mean ({which}, all images)",
                  estimate([1 - fmean(by_seed(results, "half", axis))]), most=0.05, unit="share")
        for axis, which in (("parameters", "largest width"), ("images", "middle width"))
    ]  # fmt: skip
