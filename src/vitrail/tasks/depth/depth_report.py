"""The result of a depth model for reports: errors with intervals, their distribution, worst images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.targets.depth_target import DepthTarget
from vitrail.data.targets.drawing import as_rgb, draw_depth, draw_share
from vitrail.report import Metric, Picture, Section, Table, Value
from vitrail.report.charts_scatter import histogram
from vitrail.report.intervals import bootstrap
from vitrail.report.metric import Interval, show_interval
from vitrail.tasks.answer import Example
from vitrail.tasks.depth.depth_answer import DepthAnswer
from vitrail.tasks.depth.depth_metrics import NAMES
from vitrail.tasks.gallery import drawn_gallery

METRICS = {
    "delta1": Metric("delta 1", "share", "share of pixels within a factor of 1.25 of the true distance"),
    "abs_rel": Metric("AbsRel", "", "mean of the error over the true distance", higher=False),
    "rmse": Metric("RMSE", "", "root of the mean squared error", higher=False),
    "silog": Metric("SILog", "", "deviation of the error of logarithms", higher=False, is_loss=True),
    "abs_rel_aligned": Metric("AbsRel aligned", "", "after scaling to the true median", higher=False),
    "delta1_aligned": Metric("delta 1 aligned", "share", "after scaling to the true median"),
}
_LARGE = 0.5  # the relative error that has the warmest colour
_WORST = (
    "The images with the largest relative errors: the true distances, those that were found, and their errors. Warm is "
    f"near, on one scale for both; an error is warm from {_LARGE:.0%} of the true distance on. Pixels without a known "
    "distance are not tinted."
)


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
        found.append(drawn_gallery("Worst images", _WORST, worst, drawn, _relative_error))
    return tuple(found)


def drawn(example: Example) -> tuple[Tensor, Tensor, Tensor] | None:
    """The true distances, those that were found, and the errors."""
    true, answer, image = example.targets.get(DepthTarget.field), example.answer, as_rgb(example.image)
    if true is None or not isinstance(answer, DepthAnswer) or not true.shape == answer.size == image.shape[1:]:
        return None
    known = true > 0
    error = (answer.depth - true).abs() / true.clamp(min=1e-6) / _LARGE
    grey = image.float().mean(dim=0).to(torch.uint8).expand(3, -1, -1)
    return draw_depth(image, true), draw_depth(image, answer.depth, like=true), draw_share(grey, error, known)


def _relative_error(example: Example) -> str:
    return f"AbsRel {example.error:.2f}"


def _table(results: Mapping[str, Any], known: Mapping[str, Interval]) -> Table:
    rows: list[dict[str, Value]] = [
        {"metric": METRICS[name].title, "value": results[name], "95 %": show_interval(known[name])} for name in NAMES
    ]
    return Table("Errors", {"metric": "", "value": "", "95 %": ""}, rows)
