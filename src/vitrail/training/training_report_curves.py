"""The curves of a training report: what was followed over the epochs, and which of them was chosen."""

import html
import math
from collections.abc import Mapping

from vitrail.charts import Curve, curves, percent, plain
from vitrail.training.training_report_parts import MEANING, History, known, unit

_AT_HALF = {  # what is followed over the epochs, of which thresholds are chosen only when they are over
    "f1": "F1 at 0.5",
    "best_f1": "F1 at the best thresholds",
    "exact": "exact match at 0.5",
    "label_accuracy": "label accuracy at 0.5",
}
_FOLLOWED = {  # beside the losses and metrics: name in the history -> title and what the curve is called
    "lr": ("Learning rate", ""),
    "images_per_second": ("Speed", "images a second"),
    "waiting": ("Waiting for data", "share of the time"),
}
_SPLITS = {"train": "training", "val": "validation"}
_LOSSES = ("nll", "bce")  # metrics that stand beside the training loss where there is no validation loss


def history(rows: History, best_metric: str, best_epoch: int | None) -> str:
    """A chart for each thing followed over the epochs: losses and metrics first, training beside validation."""
    charts: dict[str, dict[str, str]] = {
        "loss": {},
        best_metric: {},
    }  # title -> name in the history -> name of the curve
    for name in dict.fromkeys(name for row in rows for name in row):
        split, _, metric = name.partition("/")
        if split in _SPLITS and metric not in ("", "images"):
            charts.setdefault(metric, {})[name] = _SPLITS[split]
    for metric in _LOSSES:
        if metric in charts and "val/loss" not in charts["loss"]:
            charts["loss"] |= {f"val/{metric}": f"validation {MEANING[metric][0]}"}
            del charts[metric]
    first = dict.fromkeys(("loss", best_metric))
    chosen = _chosen(rows, f"val/{best_metric}", best_epoch)
    large = "".join(_chart(one, charts[one], rows, best=chosen if one == best_metric else None) for one in first)
    small = "".join(_chart(metric, names, rows, small=True) for metric, names in charts.items() if metric not in first)
    small += "".join(_chart(title, {name: called}, rows, small=True) for name, (title, called) in _FOLLOWED.items())
    large, small = (
        f'<div class="charts{cls}">{figures}</div>' if figures else ""
        for cls, figures in (("", large), (" small", small))
    )
    return large + _passed_over(rows, best_metric, chosen) + small


def _validated(rows: History, name: str) -> list[tuple[float, float]]:
    """Epochs and their finite values of something."""
    found = ((row.get("epoch") or index + 1, row.get(name)) for index, row in enumerate(rows))
    return [(epoch, value) for epoch, value in found if value is not None and math.isfinite(value)]


def _chosen(rows: History, name: str, best_epoch: int | None) -> tuple[float, float] | None:
    """The epoch whose model was kept, and what it was chosen by: the largest, where the run does not say which."""
    points = _validated(rows, name)
    kept = [point for point in points if point[0] == best_epoch] or points
    return max(kept, key=lambda at: at[1], default=None)


def _passed_over(rows: History, best_metric: str, chosen: tuple[float, float] | None) -> str:
    """Why the best epoch is not the highest, where one of the warm-up was higher."""
    epoch, value = max(_validated(rows, f"val/{best_metric}"), key=lambda at: at[1], default=(0.0, 0.0))
    if chosen is None or value <= chosen[1]:
        return ""
    written = percent if unit(best_metric) == "share" else plain
    told = f"Epoch {epoch:g} was higher, {written(value)}, but epochs of the warm-up are not chosen from."
    return f'<p class="aside">{html.escape(told)}</p>'


def _chart(
    title: str,
    names: Mapping[str, str],
    rows: History,
    *,
    best: tuple[float, float] | None = None,
    small: bool = False,
) -> str:
    series = []
    for name, called in names.items():
        points = [(row.get("epoch") or index + 1, row.get(name)) for index, row in enumerate(rows)]
        if known(rows, name):
            series.append(Curve(called, points))
    if not series:
        return ""
    name = next(iter(names))
    written = percent if unit(name) == "share" else plain
    words = "" if best is None else f", best {written(best[1])} at epoch {best[0]:g}"
    possible = (0.0, 1.0) if unit(name) == "share" else (-math.inf, math.inf)
    if len(series) == 1 and series[0].name:
        words = f", {series[0].name}{words}"
    keys = [f'<span class="key {cls}">{curve.name}</span>' for cls, curve in zip("ab", series, strict=False)]
    legend = "".join(keys) if len(keys) > 1 else ""
    called = _AT_HALF.get(title) or MEANING.get(title, (title, ""))[0]
    floor = 0.0 if name in _FOLLOWED else None
    svg = curves(called, series, show=written, mark=best, floor=floor, within=possible, small=small)
    told = f"<b>{html.escape(called[:1].upper() + called[1:])}</b>{html.escape(words)} {legend}"
    return f"<figure><figcaption>{told}</figcaption>\n{svg}\n</figure>"
