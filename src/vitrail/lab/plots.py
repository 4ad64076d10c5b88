"""Series of charts from the results of all seeds."""

from collections.abc import Mapping, Sequence

from vitrail.lab.estimates import curve
from vitrail.lab.experiment import Results
from vitrail.report import Picture
from vitrail.report.charts_series import Series, series


def line(name: str, x: Sequence[float], results: Sequence[Results], *path: str) -> Series:
    """The means over seeds of a list in the results, with their intervals."""
    means = curve(results, *path)
    points = [(at, mean.value) for at, mean in zip(x, means, strict=True)]
    return Series(name, points, [(mean.low, mean.high) for mean in means])


def chart(
    title: str, lines: Sequence[Series], text: str, *, x: str, y: str, log_x: bool = False, log_y: bool = False
) -> Picture:
    """A chart with its caption; on a logarithmic axis, an interval that reaches 0 ends at half of the lowest mean."""
    shown = _above_zero(lines) if log_y else lines
    return Picture(title, series(title, shown, x=x, y=y, log_x=log_x, log_y=log_y), text)


def _above_zero(lines: Sequence[Series]) -> list[Series]:
    lowest = min((value for one in lines for _, value in one.points if value > 0), default=1.0) / 2
    return [one._replace(band=[(low if low > 0 else lowest, high) for low, high in one.band]) for one in lines]


def by_name(results: Sequence[Results], x: Sequence[float], names: Mapping[str, str], *path: str) -> list[Series]:
    """A line for each key of the dict at a path, in the order of `names`, which are their titles."""
    return [line(title, x, results, *path, key) for key, title in names.items()]
