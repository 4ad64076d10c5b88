"""Small charts as inline SVG: curves, dots by column, and calibration; no script, no network, light and dark by CSS.

    svg = curves("Loss", (Curve("training", ((1, 2.3), (2, 1.7))), Curve("validation", ((1, 2.2), (2, 1.8)))))

A page that shows them includes the styles `charts` and `colours`; `alone` makes a chart a file of its own. What a
pointer rests on is written above the plot, and is a tooltip too.
"""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from vitrail.errors import ConfigError
from vitrail.report.charts_axes import (
    ANYWHERE,
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SMALL,
    TOP,
    WIDTH,
    Plot,
    Range,
    Scale,
    Show,
    alone,
    drawing,
    label,
    percent,
    plain,
    ticks,
    y_axis,
)

__all__ = ["Bin", "Curve", "alone", "calibration", "curves", "percent", "plain", "points", "ticks"]

Points = Mapping[float, float]  # y by x

_MOST_STOPS = 120  # areas that react to a pointer: more would be narrower than a pixel


class Curve(NamedTuple):
    """A name, and its points x y in the order of x; a y that is None or NaN leaves a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


class Bin(NamedTuple):
    """Predictions of similar confidence: their mean confidence, the share that was right, and how many there are."""

    confidence: float
    accuracy: float
    size: int


def curves(
    title: str,
    series: Sequence[Curve],
    *,
    x: str = "epoch",
    show: Show = plain,
    mark: tuple[float, float] | None = None,
    floor: float | None = None,
    ceiling: float | None = None,
    within: Range = ANYWHERE,
    small: bool = False,
    key: bool = False,
) -> str:
    """One or two curves with axes, as SVG; `mark` rings a point of the last.

    The y axis reaches `floor` and `ceiling`, and stays `within` what is possible.

    `key` writes the names of the curves above the plot, where no caption tells them, and that of x below its values.
    """
    width, height = SMALL if small else (WIDTH, HEIGHT)
    if not 1 <= len(series) <= 2:
        raise ConfigError(f"the chart {title!r} has {len(series)} curves; it shows one or two")
    known = [
        (curve.name, {position: y for position, y in curve.points if y is not None and isfinite(y)}) for curve in series
    ]
    values = [y for _, points in known for y in points.values()]
    positions = sorted({position for _, points in known for position in points})
    if not values:
        raise ConfigError(f"the chart {title!r} has no points")
    reached = [*values, *(end for end in (floor, ceiling) if end is not None)]
    levels = ticks(min(reached), max(reached), within=within)
    half = 0.5 if len(positions) == 1 else 0.0
    across = Scale(positions[0] - half, positions[-1] + half, LEFT, width - RIGHT)
    plot = Plot(across, Scale(levels[0], levels[-1], height - BOTTOM, TOP), x, show)
    parts = [*y_axis(levels, plot), *_x_axis(positions, plot, below=key)]
    parts += [_line(points, plot, cls) for (_, points), cls in zip(known, "ab", strict=False)]
    if mark is not None:
        x_mark, y_mark = f"{across(mark[0]):.1f}", f"{plot.up(mark[1]):.1f}"
        parts.append(f'<circle class="mark {"ab"[len(series) - 1]}" cx="{x_mark}" cy="{y_mark}" r="4.5"/>')
    parts += _key([name for name, _ in known]) if key else []
    parts += _hover_areas(known, positions, plot)
    ways = [_in_words(name, list(points.values()), show) for name, points in known if points]
    return drawing(f"{title} by {x}: {', '.join(ways)}", parts, (width, height + 16 if key else height))


def points(
    title: str,
    columns: Mapping[int, Sequence[float]],
    *,
    x: str,
    one: str,
    show: Show = plain,
    floor: float | None = 0.0,
) -> str:
    """Several values for each x, one dot for each `one` of them, and a line through their means, as SVG."""
    known = {position: [y for y in values if isfinite(y)] for position, values in sorted(columns.items())}
    known = {position: values for position, values in known.items() if values}
    if not known:
        raise ConfigError(f"the chart {title!r} has no points")
    every = [y for values in known.values() for y in values]
    levels = ticks(min(every) if floor is None else min(floor, *every), max(every))
    first, last = min(known), max(known)
    across = Scale(first - 0.5, last + 0.5, LEFT, WIDTH - RIGHT)
    plot = Plot(across, Scale(levels[0], levels[-1], HEIGHT - BOTTOM, TOP), x, show)
    means: dict[float, float] = {position: sum(values) / len(values) for position, values in known.items()}
    parts = [*y_axis(levels, plot), *_x_axis([first, last], plot, below=True), _line(means, plot, "faint")]
    for position, values in known.items():
        at, mean = f"{across(position):.1f}", means[position]
        words = f"{x} {position}: mean {show(mean)}, {show(min(values))} to {show(max(values))} of {len(values)}"
        dots = "".join(
            f'<circle class="dot a many" cx="{at}" cy="{plot.up(y):.1f}" r="3"><title>'
            f"{html.escape(f'{x} {position}, {one} {number}: {show(y)}')}</title></circle>"
            for number, y in enumerate(values)
        )
        left, right = across(position - 0.5), across(position + 0.5)
        parts.append(
            f'<g class="stop"><title>{html.escape(words)}</title><rect class="hit" x="{left:.1f}" y="{TOP}" '
            f'width="{right - left:.1f}" height="{plot.up.start - TOP}"/>{dots}'
            f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
        )
    low, high = min(means.values()), max(means.values())
    description = f"{title} by {x}, a dot for each {one}; means from {show(low)} to {show(high)}"
    return drawing(description, parts, (WIDTH, HEIGHT + 16))


def calibration(bins: Sequence[Bin], *, title: str = "Calibration") -> str:
    """A reliability diagram as SVG: accuracy by confidence, against the diagonal of perfect calibration.

    The bins share the range from 0 to 1 equally and stand in its order; below, how many predictions each one holds.
    """
    if not bins or not any(item.size for item in bins):
        raise ConfigError(f"the chart {title!r} has no predictions to show")
    base, foot = HEIGHT + 10 - BOTTOM, HEIGHT + 90 - BOTTOM
    across, up = Scale(0, 1, LEFT, WIDTH - RIGHT - 12), Scale(0, 1, base, TOP)
    plot = Plot(across, up, "", percent)
    fifths = [index / 5 for index in range(6)]
    parts = [*y_axis(fifths, plot)]
    largest = max(item.size for item in bins)
    for index, item in enumerate(bins):
        if item.size:
            edges = index / len(bins), (index + 1) / len(bins)
            parts.append(_bar(item, edges, plot, Scale(0, largest, foot, foot - 34)))
    parts += [
        *(label(across(level), base + 15, percent(level), "middle") for level in fifths),
        f'<line class="ideal" x1="{across(0):.1f}" y1="{up(0):.1f}" x2="{across(1):.1f}" y2="{up(1):.1f}"/>',
        f'<line class="axis" x1="{LEFT}" y1="{foot}" x2="{across.end}" y2="{foot}"/>',
        label(LEFT - 6, foot, "count", "end"),
        label((LEFT + across.end) / 2, foot + 17, "confidence of the prediction", "middle"),
    ]
    total = sum(item.size for item in bins)
    gap = sum(item.size * abs(item.accuracy - item.confidence) for item in bins) / total
    return drawing(
        f"{title}: right answers by confidence; mean gap {percent(gap)} of {total:,}", parts, (WIDTH, foot + 24)
    )


def _key(names: Sequence[str]) -> Iterator[str]:
    x = float(LEFT)
    for cls, name in zip("ab", names, strict=False):
        yield f'<path class="curve {cls} named" d="M{x:.1f} 8h14"/>' + label(x + 19, 12, name, "start")
        x += 33 + 6.5 * len(name)


def _bar(item: Bin, edges: tuple[float, float], plot: Plot, crowd: Scale) -> str:
    """One bin: the bar up to its accuracy, the gap to its confidence, its size below, and its tooltip."""
    low, high = (f"{100 * edge:.0f}" for edge in edges)
    words = f"{low} to {high} % sure: {percent(item.accuracy)} right of {item.size:,}"
    left, right = plot.across(edges[0]), plot.across(edges[1])
    up, foot = plot.up, crowd(0)

    def box(cls: str, one: float, other: float) -> str:
        return (
            f'<rect class="{cls}" x="{left + 1:.1f}" y="{min(one, other):.1f}" '
            f'width="{right - left - 2:.1f}" height="{abs(one - other):.1f}"/>'
        )

    return (
        f'<g class="stop"><title>{html.escape(words)}</title>'
        f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{foot - TOP:.1f}"/>'
        + box("bar", up(item.accuracy), up(0))
        + box("over" if item.confidence > item.accuracy else "under", up(item.accuracy), up(item.confidence))
        + box("crowd", min(crowd(item.size), foot - 1), foot)  # a bin that is not empty stays visible
        + f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
    )


def _x_axis(positions: Sequence[float], plot: Plot, *, below: bool = False) -> Iterator[str]:
    """The x axis with whole numbers, and its name at the right end, or below them."""
    right, base = plot.across.end, plot.up.start
    yield f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{right}" y2="{base}"/>'
    step = max(1, math.ceil((positions[-1] - positions[0]) / (right / 50)))
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, step) if size >= step)
    for tick in range(math.ceil(positions[0] / step) * step, math.floor(positions[-1]) + 1, step):
        if (
            below or plot.across(tick) < right - 7 * len(plot.x) - 4 * len(str(tick)) - 4
        ):  # the name of the axis is there
            yield label(plot.across(tick), base + 17, str(tick), "middle")
    yield label((LEFT + right) / 2, base + 33, plot.x, "middle") if below else label(right, base + 17, plot.x, "end")


def _line(points: Points, plot: Plot, cls: str) -> str:
    """A curve as a path; a lone point becomes a dot."""
    spots = [f"{plot.across(x):.1f} {plot.up(y):.1f}" for x, y in sorted(points.items())]
    if len(spots) == 1:
        x, y = spots[0].split()
        return f'<circle class="dot {cls}" cx="{x}" cy="{y}" r="3"/>'
    return f'<path class="curve {cls}" d="M{"L".join(spots)}"/>' if spots else ""


def _hover_areas(known: Sequence[tuple[str, Points]], positions: Sequence[float], plot: Plot) -> Iterator[str]:
    """Areas that react to a pointer: a vertical line, dots on the curves, and their values as text."""
    stride = math.ceil(len(positions) / _MOST_STOPS)
    chosen = sorted({*positions[::stride], positions[-1]})
    between = [(plot.across(a) + plot.across(b)) / 2 for a, b in pairwise(chosen)]
    for position, (left, right) in zip(chosen, pairwise([LEFT, *between, plot.across.end]), strict=True):
        there = [
            (cls, name, points[position])
            for cls, (name, points) in zip("ab", known, strict=False)
            if position in points
        ]
        words = f"{plot.x} {position:g}: " + ", ".join(f"{name} {plot.show(y)}" for _, name, y in there)
        at = f"{plot.across(position):.1f}"
        dots = "".join(f'<circle class="dot {cls}" cx="{at}" cy="{plot.up(y):.1f}" r="3.5"/>' for cls, _, y in there)
        yield (
            f'<g class="stop"><title>{html.escape(words)}</title>'
            f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{plot.up.start - TOP}"/>'
            f'<g class="seen"><line class="now" x1="{at}" y1="{TOP}" x2="{at}" y2="{plot.up.start}"/>{dots}</g>'
            f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
        )


def _in_words(name: str, values: Sequence[float], show: Show) -> str:
    """A curve in words, for screen readers."""
    return f"{name} from {show(values[0])} to {show(values[-1])}" if len(values) > 1 else f"{name} {show(values[0])}"
