"""The result of a regression for reports: errors by number with intervals, scatter plots, residuals, worst errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vitrail.report import Group, Metric, Picture, Section, Table, Text, Unit, Value
from vitrail.report.charts_scatter import histogram, scatter
from vitrail.report.intervals import Floats, bootstrap
from vitrail.report.metric import Interval, show_interval
from vitrail.tasks.answer import Example
from vitrail.tasks.gallery import example_gallery

METRICS = {
    "r2": Metric("R2", "", "share of the variance that is explained"),
    "mae": Metric("MAE", "", "mean absolute error", higher=False),
    "rmse": Metric("RMSE", "", "root of the mean squared error", higher=False),
    "mae_std": Metric("MAE in deviations", "", higher=False, curve_only=True),
    "coverage": Metric("coverage", "share", "share of numbers inside their prediction interval"),
}
_MOST = 12  # numbers that have charts
_WORST = "The images with the largest errors: the prediction with its interval, and the truth."
_STATISTICS: dict[str, Callable[[Floats], Floats]] = {  # of the means of |e|, e^2, t and t^2
    "r2": lambda means: 1 - means[1] / np.where(means[3] > means[2] ** 2, means[3] - means[2] ** 2, np.nan),
    "mae": lambda means: means[0],
    "rmse": lambda means: np.sqrt(means[1]),
}


class Score(NamedTuple):
    """A metric of one number, and its 95 % interval."""

    value: float
    interval: Interval


def scores(truth: Tensor, predicted: Tensor) -> dict[str, Score]:
    """MAE, RMSE and R2 of one number, true and predicted values N, with bootstrap intervals.

    R2 is NaN where all true values are equal.
    """
    true, said = (values.detach().cpu().double().numpy() for values in (truth, predicted))
    error, centred = said - true, true - true.mean()  # centred: R2 does not change, and its digits are kept
    table = np.stack([np.abs(error), error**2, centred, centred**2], axis=1)  # N 4
    means = table.mean(axis=0, keepdims=True).T  # 4 1
    return {name: Score(float(of(means)[0]), bootstrap(table, of)) for name, of in _STATISTICS.items()}


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    images = int(results["images"])
    return f"Mean absolute error {results['mae']:.4g}, R2 {results['r2']:.3f}, on {images:,} images"


def sections(
    truth: Tensor,
    predicted: Tensor,
    names: Sequence[str],
    *,
    half_widths: Sequence[float] | None = None,
    worst: Sequence[Example] = (),
) -> tuple[Section, ...]:
    """All sections of true and predicted numbers N K in their own units.

    `half_widths` K are those of the prediction intervals; `worst` are examples of large errors, the worst first.
    """
    found = [scores(truth[:, at], predicted[:, at]) for at in range(len(names))]
    made: list[Section] = [_per_number(truth, predicted, names, found, half_widths)]
    made += _charts(truth, predicted, names, found, half_widths)
    if worst:
        made.append(example_gallery("Largest errors", _WORST, worst))
    return tuple(made)


def _per_number(
    truth: Tensor,
    predicted: Tensor,
    names: Sequence[str],
    found: Sequence[Mapping[str, Score]],
    half_widths: Sequence[float] | None,
) -> Table:
    """A row a number: its metrics with 95 % intervals, and how often its prediction interval holds the truth."""
    rows: list[dict[str, Value]] = []
    for at, name in enumerate(names):
        row: dict[str, Value] = {"number": name}
        for metric, (value, interval) in found[at].items():
            title, known = METRICS[metric].title, math.isfinite(value)
            row |= {title: value if known else None, f"{title} 95 %": show_interval(interval) if known else None}
        if half_widths is not None:
            inside = (predicted[:, at] - truth[:, at]).abs() <= half_widths[at]
            row |= {"interval \N{PLUS-MINUS SIGN}": half_widths[at], "coverage": float(inside.double().mean())}
        rows.append(row)
    units: dict[str, Unit] = {column: "share" if column == "coverage" else "" for column in rows[0]}
    return Table("Per number", units, rows)


def _charts(
    truth: Tensor,
    predicted: Tensor,
    names: Sequence[str],
    found: Sequence[Mapping[str, Score]],
    half_widths: Sequence[float] | None,
) -> list[Section]:
    """Scatter plots and histograms of residuals; of many numbers those with the lowest R2."""
    weakest = sorted(range(len(names)), key=lambda at: found[at]["r2"].value)[:_MOST]
    small = len(names) > 2
    plots, residuals = [], []
    for at in sorted(weakest):
        true, said = truth[:, at].double(), predicted[:, at].double()
        band = None if half_widths is None else half_widths[at]
        plot = scatter(names[at], true.tolist(), said.tolist(), band=band, small=small)
        difference = (said - true).tolist()
        bars = histogram(f"Residuals of {names[at]}", difference, x="prediction minus truth", small=small)
        plots.append(Picture(names[at], plot, ""))
        residuals.append(Picture(names[at], bars, ""))
    if len(names) == 1:
        pair = replace(plots[0], title="Truth and prediction"), replace(residuals[0], title="Residuals")
        return [Group("Predictions", pair, 2)]
    columns = 3 if small else 2
    groups = {"Predictions": plots, "Residuals": residuals}
    if len(names) <= _MOST:
        return [Group(title, tuple(charts), columns) for title, charts in groups.items()]
    note = Text("", f"The {_MOST} of {len(names)} numbers with the lowest R2.")
    return [Group(title, (note, Group("", tuple(charts), columns))) for title, charts in groups.items()]
