"""The result of a depth model for reports: errors with intervals, their distribution, worst images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.report import Metric, Picture, Section, Table, Value
from vitrail.report.charts_scatter import histogram
from vitrail.report.intervals import bootstrap
from vitrail.report.metric import Interval, show_interval
from vitrail.tasks.answer import Example
from vitrail.tasks.depth.depth_metrics import NAMES
from vitrail.tasks.gallery import example_gallery

METRICS = {
    "delta1": Metric("delta 1", "share", "share of pixels within a factor of 1.25 of the true distance"),
    "abs_rel": Metric("AbsRel", "", "mean of the error over the true distance", higher=False),
    "rmse": Metric("RMSE", "", "root of the mean squared error", higher=False),
    "silog": Metric("SILog", "", "deviation of the error of logarithms", higher=False, is_loss=True),
    "abs_rel_aligned": Metric("AbsRel aligned", "", "after scaling to the true median", higher=False),
    "delta1_aligned": Metric("delta 1 aligned", "share", "after scaling to the true median"),
}
_WORST = "The images with the largest relative errors, tinted by the distance that was found: warm is near."


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    near = f"{100 * results['delta1']:.1f} % of the pixels within a factor of 1.25"
    return f"AbsRel {results['abs_rel']:.3f}, {near}, on {int(results['images']):,} images"


def intervals(errors: Tensor) -> dict[str, Interval]:
    """Bootstrapped over images, of errors N 6."""
    table = errors.double().numpy()
    return {name: bootstrap(table[:, [at]], lambda means: means[0]) for at, name in enumerate(NAMES)}


def sections(results: Mapping[str, Any], *, worst: Sequence[Example] = ()) -> tuple[Section, ...]:
    """All sections of the results of a DepthMeter; `worst` are examples of mistakes, the worst first."""
    errors = results["errors"]
    found: list[Section] = [_table(results, intervals(errors))]
    relative = errors[:, NAMES.index("abs_rel")]
    if len(relative) > 1:
        bars = histogram("AbsRel of images", np.asarray(relative).tolist(), x="relative error")
        found.append(Picture("Errors of images", bars, ""))
    if worst:
        found.append(example_gallery("Worst images", _WORST, worst))
    return tuple(found)


def _table(results: Mapping[str, Any], known: Mapping[str, Interval]) -> Table:
    rows: list[dict[str, Value]] = [
        {"metric": METRICS[name].title, "value": results[name], "95 %": show_interval(known[name])} for name in NAMES
    ]
    return Table("Errors", {"metric": "", "value": "", "95 %": ""}, rows)
