"""Training curves: a chart for each loss, metric and speed over the epochs, and the epoch that was chosen."""

import math
from collections.abc import Mapping, Sequence

from vitrail.report import Group, Metric, Picture, Section, Text
from vitrail.report.charts import Curve, curves, percent, plain

History = Sequence[Mapping[str, float | None]]
Point = tuple[float, float]

_SPEEDS = {  # followed beside losses and metrics: name in the history -> how it is shown
    "lr": Metric("Learning rate"),
    "images_per_second": Metric("Speed", "", "images per second"),
    "waiting": Metric("Waiting for data", "share", "share of the time"),
}
_SPLITS = {"train": "training", "val": "validation"}
_UNKNOWN = Metric("")


def training_curves(
    rows: History, metrics: Mapping[str, Metric], best_metric: str, best_epoch: int | None
) -> Group | None:
    """The charts of a run: the loss and the best metric first, training beside validation; None without epochs."""
    names = _by_chart(rows, metrics, best_metric)
    first = dict.fromkeys(name for name in ("loss", best_metric) if name in names)
    chosen = chosen_epoch(rows, best_metric, metrics, best_epoch)
    marks = {best_metric: chosen}
    shown = {
        name: chart
        for name in [*first, *names]
        if (chart := _chart(name, names[name], rows, metrics, best=marks.get(name), small=name not in first))
    }
    speeds = (_chart(name, {name: ""}, rows, _SPEEDS, small=True) for name in _SPEEDS)
    small = [*(chart for name, chart in shown.items() if name not in first), *filter(None, speeds)]
    large = [shown[name] for name in first if name in shown]
    sections: list[Section] = [Group("", tuple(large), 2)] if large else []
    if note := _warm_up_note(rows, best_metric, metrics, chosen):
        sections.append(Text("", note))
    if small:
        sections.append(Group("", tuple(small), 3))
    return Group("Training curves", tuple(sections)) if sections else None


def values_of(rows: History, name: str) -> list[float]:
    """All finite values of one column of the history."""
    return [value for _, value in _points(rows, name)]


def chosen_epoch(rows: History, name: str, metrics: Mapping[str, Metric], best_epoch: int | None) -> Point | None:
    """The epoch whose model was kept, and its value: the best one where the run does not say which."""
    points = _points(rows, f"val/{name}")
    kept = [point for point in points if point[0] == best_epoch] or points
    return _best(kept, metrics.get(name, _UNKNOWN))


def _by_chart(rows: History, metrics: Mapping[str, Metric], best_metric: str) -> dict[str, dict[str, str]]:
    """The charts: metric -> name in the history -> name of the curve."""
    charts: dict[str, dict[str, str]] = {"loss": {}, best_metric: {}}
    for name in sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: name[:4] == "val/"):
        split, _, metric = name.partition("/")
        if split in _SPLITS and metric.rpartition(".")[2] not in ("", "images", "boxes"):
            charts.setdefault(metric, {})[name] = _SPLITS[split]
    if charts["loss"] and "val/loss" not in charts["loss"]:
        for name in [name for name in charts if name != best_metric and metrics.get(name, _UNKNOWN).is_loss]:
            charts["loss"] |= {f"val/{name}": f"validation {metrics[name].title}"}
            del charts[name]
            break  # a chart holds two curves
    return {metric: names for metric, names in charts.items() if names}


def _points(rows: History, name: str) -> list[Point]:
    """Epochs and their finite values of one column of the history."""
    found = ((row.get("epoch") or index + 1, row.get(name)) for index, row in enumerate(rows))
    return [(epoch, value) for epoch, value in found if value is not None and math.isfinite(value)]


def _best(points: Sequence[Point], metric: Metric) -> Point | None:
    sign = 1 if metric.higher else -1
    return max(points, key=lambda point: sign * point[1], default=None)


def _warm_up_note(rows: History, name: str, metrics: Mapping[str, Metric], chosen: Point | None) -> str:
    """Why the chosen epoch is not the best of all, where one of the warm-up was better."""
    metric = metrics.get(name, _UNKNOWN)
    best = _best(_points(rows, f"val/{name}"), metric)
    if chosen is None or best is None or best[1] == chosen[1]:
        return ""
    written = percent if metric.unit == "share" else plain
    return f"Epoch {best[0]:g} was better, {written(best[1])}, but epochs of the warm-up are not candidates."


def _chart(
    name: str,
    columns: Mapping[str, str],
    rows: History,
    metrics: Mapping[str, Metric],
    *,
    best: Point | None = None,
    small: bool = False,
) -> Picture | None:
    series = [Curve(called, points) for column, called in columns.items() if (points := _points(rows, column))]
    if not series:
        return None
    metric = metrics.get(name, _UNKNOWN)
    title = metric.curve or metric.title or name
    share = metric.unit == "share"
    written = percent if share else plain
    words = [] if best is None else [f"best {written(best[1])} at epoch {best[0]:g}"]
    if len(series) == 1 and (only := metric.meaning if name in _SPEEDS else series[0].name):
        words.insert(0, only)
    svg = curves(
        title,
        [curve._replace(name=curve.name or title.lower()) for curve in series],
        show=written,
        mark=best,
        floor=0.0 if name in _SPEEDS else None,
        within=(0.0, 1.0) if share else (-math.inf, math.inf),
        small=small,
    )
    legend = tuple(curve.name for curve in series) if len(series) > 1 else ()
    heading = title if any(letter.isupper() for letter in title.split()[0]) else title[:1].upper() + title[1:]
    return Picture(heading, svg, ", ".join(words), legend=legend)
