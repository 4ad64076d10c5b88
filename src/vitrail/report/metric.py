"""Metrics and their values: the name people use, the unit, what it means, which direction is better."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitrail.report.values import Unit, show

Interval = tuple[float, float]


@dataclass(frozen=True)
class Metric:
    """How a metric is named and shown; `meaning` is one short phrase.

    `curve` is the title of its curve over the epochs, where that differs; a `curve_only` metric is not part of the
    result. A metric that `is_loss` is drawn in the chart of the training loss when validation has no loss of its own.
    """

    title: str
    unit: Unit = ""
    meaning: str = ""
    higher: bool = True  # whether higher is better
    curve: str = ""
    is_loss: bool = False
    curve_only: bool = False


@dataclass(frozen=True)
class Figure:
    """The value of a metric, with its 95 % interval where one is known."""

    value: float | str
    title: str
    unit: Unit = ""
    meaning: str = ""
    interval: Interval | None = None

    @property
    def text(self) -> str:
        """The value as people read it."""
        return show(self.value, self.unit)

    @property
    def note(self) -> str:
        """The interval where there is one, else the meaning."""
        if self.interval is None:
            return self.meaning
        return f"95 % interval: {show_interval(self.interval, self.unit)}"


def figures(
    results: Mapping[str, object], metrics: Mapping[str, Metric], intervals: Mapping[str, Interval] | None = None
) -> dict[str, Figure]:
    """The plain numbers among the results, in the order of `metrics`, which says how each one is shown."""
    found = {}
    for name, metric in metrics.items():
        value = results.get(name)
        if isinstance(value, int | float) and not metric.curve_only:
            interval = (intervals or {}).get(name)
            found[name] = Figure(float(value), metric.title, metric.unit, metric.meaning, interval)
    return found


def show_interval(interval: Interval, unit: Unit = "") -> str:
    """An interval as text: 87.3 to 90.1 %."""
    low, high = (show(end, unit) for end in interval)
    return f"{low.removesuffix(' %') if high.endswith(' %') else low} to {high}"
