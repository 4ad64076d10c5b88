"""Small charts as inline SVG: curves, clouds of points, and calibration; no script, no network, light and dark by CSS.

    svg = curves("Loss", (Curve("training", ((1, 2.3), (2, 1.7))), Curve("validation", ((1, 2.2), (2, 1.8)))))

A page that shows them includes `STYLE` and sets the colours --ink, --soft, --line, --paper, --one, --two and --warm
(`COLOURS` has the last three); `alone` makes a file of its own of a chart. What a pointer rests on is written above the
plot; the same words are titles, so that readers without a pointer have them too.
"""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from vitrail.errors import ConfigError

Show = Callable[[float], str]
Points = Mapping[float, float]  # y by x
Range = tuple[float, float]

_WIDTH, _HEIGHT = 420, 230  # of the picture, in its own units; a page scales it
_SMALL = 300, 170  # of a small one
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 22, 26  # margins around the plot
_MOST_STOPS = 120  # places where a pointer finds something: more would be narrower than a pixel
_ANYWHERE = (-math.inf, math.inf)
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Curve(NamedTuple):
    """A name, and its points x y in the order of x; a y that is None or no number leaves a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


class Bin(NamedTuple):
    """Predictions of similar confidence: their mean confidence, the share that was right, and how many there are."""

    confidence: float
    accuracy: float
    size: int


class _Scale(NamedTuple):
    """A straight line from values to places in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.end - self.start)


class _Plot(NamedTuple):
    """Where values stand: the x axis and the y axis, what x counts, and how y is written."""

    across: _Scale
    up: _Scale
    x: str
    show: Show


def ticks(low: float, high: float, count: int = 5, *, within: Range = _ANYWHERE) -> list[float]:
    """About `count` round numbers that enclose low to high: steps of 1, 2, 2.5 or 5 times a power of ten.

    They stay `within` what is possible, such as 0 to 1 for shares, unless the values do not.
    """
    if not (isfinite(low) and isfinite(high) and low <= high):
        raise ConfigError(f"an axis cannot go from {low:g} to {high:g}; it needs two numbers in rising order")
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-12):
        half = abs(low) / 2 or 0.5
        low, high = min(low, max(low - half, within[0])), max(high, min(high + half, within[1]))
    rough = (high - low) / max(count - 1, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def plain(value: float) -> str:
    """A number as an axis shows it, without a tail of zeros: 0.25, 60,000, 2.5e-4."""
    if value == 0 or 1e-2 <= abs(value) < 1e6:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def percent(value: float) -> str:
    """A share as per cent, with a digit after the point where it is no whole number."""
    return f"{100 * value:.4g} %" if abs(100 * value - round(100 * value)) < 1e-9 else f"{100 * value:.1f} %"


def curves(
    title: str,
    series: Sequence[Curve],
    *,
    x: str = "epoch",
    show: Show = plain,
    mark: tuple[float, float] | None = None,
    floor: float | None = None,
    within: Range = _ANYWHERE,
    small: bool = False,
    key: bool = False,
) -> str:
    """One or two curves with axes, as SVG; `mark` rings a point of the last.

    The y axis reaches `floor`, and stays `within` what is possible.

    `key` writes the names of the curves above the plot, where no caption tells them, and that of x below its values.
    """
    width, height = _SMALL if small else (_WIDTH, _HEIGHT)
    if not 1 <= len(series) <= 2:
        raise ConfigError(f"the chart {title!r} has {len(series)} curves; it shows one or two")
    known = [(curve.name, {place: y for place, y in curve.points if y is not None and isfinite(y)}) for curve in series]
    values = [y for _, points in known for y in points.values()]
    places = sorted({place for _, points in known for place in points})
    if not values:
        raise ConfigError(f"the chart {title!r} has no points")
    levels = ticks(min(values) if floor is None else min(floor, *values), max(values), within=within)
    half = 0.5 if len(places) == 1 else 0.0
    across = _Scale(places[0] - half, places[-1] + half, _LEFT, width - _RIGHT)
    plot = _Plot(across, _Scale(levels[0], levels[-1], height - _BOTTOM, _TOP), x, show)
    parts = [*_levels(levels, plot), *_places(places, plot, below=key)]
    parts += [_line(points, plot, cls) for (_, points), cls in zip(known, "ab", strict=False)]
    if mark is not None:
        x_mark, y_mark = f"{across(mark[0]):.1f}", f"{plot.up(mark[1]):.1f}"
        parts.append(f'<circle class="mark {"ab"[len(series) - 1]}" cx="{x_mark}" cy="{y_mark}" r="4.5"/>')
    parts += _key([name for name, _ in known]) if key else []
    parts += _stops(known, places, plot)
    ways = [_way(name, list(points.values()), show) for name, points in known if points]
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
    """Many values above each place of x, one dot for each `one` of them, and a line through their means, as SVG."""
    known = {place: [y for y in values if isfinite(y)] for place, values in sorted(columns.items())}
    known = {place: values for place, values in known.items() if values}
    if not known:
        raise ConfigError(f"the chart {title!r} has no points")
    every = [y for values in known.values() for y in values]
    levels = ticks(min(every) if floor is None else min(floor, *every), max(every))
    first, last = min(known), max(known)
    across = _Scale(first - 0.5, last + 0.5, _LEFT, _WIDTH - _RIGHT)
    plot = _Plot(across, _Scale(levels[0], levels[-1], _HEIGHT - _BOTTOM, _TOP), x, show)
    means: dict[float, float] = {place: sum(values) / len(values) for place, values in known.items()}
    parts = [*_levels(levels, plot), *_places([first, last], plot, below=True), _line(means, plot, "faint")]
    for place, values in known.items():
        at, mean = f"{across(place):.1f}", means[place]
        words = f"{x} {place}: mean {show(mean)}, {show(min(values))} to {show(max(values))} of {len(values)}"
        dots = "".join(
            f'<circle class="dot a many" cx="{at}" cy="{plot.up(y):.1f}" r="3"><title>'
            f"{html.escape(f'{x} {place}, {one} {number}: {show(y)}')}</title></circle>"
            for number, y in enumerate(values)
        )
        left, right = across(place - 0.5), across(place + 0.5)
        parts.append(
            f'<g class="stop"><title>{html.escape(words)}</title><rect class="hit" x="{left:.1f}" y="{_TOP}" '
            f'width="{right - left:.1f}" height="{plot.up.start - _TOP}"/>{dots}'
            f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
        )
    low, high = min(means.values()), max(means.values())
    told = f"{title} by {x}, a dot for each {one}; means from {show(low)} to {show(high)}"
    return drawing(told, parts, (_WIDTH, _HEIGHT + 16))


def calibration(bins: Sequence[Bin], *, title: str = "Calibration") -> str:
    """Bars of how often predictions of a confidence were right, against the diagonal of perfect calibration, as SVG.

    The bins share the range from 0 to 1 equally and stand in its order; below, how many predictions each one holds.
    """
    if not bins or not any(item.size for item in bins):
        raise ConfigError(f"the chart {title!r} has no predictions to show")
    base, foot = _HEIGHT + 10 - _BOTTOM, _HEIGHT + 90 - _BOTTOM
    across, up = _Scale(0, 1, _LEFT, _WIDTH - _RIGHT - 12), _Scale(0, 1, base, _TOP)
    plot = _Plot(across, up, "", percent)
    fifths = [index / 5 for index in range(6)]
    parts = [*_levels(fifths, plot)]
    largest = max(item.size for item in bins)
    for index, item in enumerate(bins):
        if item.size:
            edges = index / len(bins), (index + 1) / len(bins)
            parts.append(_bar(item, edges, plot, _Scale(0, largest, foot, foot - 34)))
    parts += [
        *(label(across(level), base + 15, percent(level), "middle") for level in fifths),
        f'<line class="ideal" x1="{across(0):.1f}" y1="{up(0):.1f}" x2="{across(1):.1f}" y2="{up(1):.1f}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="{foot}" x2="{across.end}" y2="{foot}"/>',
        label(_LEFT - 6, foot, "count", "end"),
        label((_LEFT + across.end) / 2, foot + 17, "confidence of the prediction", "middle"),
    ]
    total = sum(item.size for item in bins)
    gap = sum(item.size * abs(item.accuracy - item.confidence) for item in bins) / total
    return drawing(
        f"{title}: right answers by confidence; mean gap {percent(gap)} of {total:,}", parts, (_WIDTH, foot + 24)
    )


def alone(svg: str) -> str:
    """A chart as an SVG file that needs no page around it."""
    style = f"<style>\n{_INK}\n{COLOURS}\n{STYLE}\n</style>"
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'


def _key(names: Sequence[str]) -> Iterator[str]:
    x = float(_LEFT)
    for cls, name in zip("ab", names, strict=False):
        yield f'<path class="curve {cls} named" d="M{x:.1f} 8h14"/>' + label(x + 19, 12, name, "start")
        x += 33 + 6.5 * len(name)


def _bar(item: Bin, edges: tuple[float, float], plot: _Plot, crowd: _Scale) -> str:
    """One bin: the bar up to its accuracy, the gap to its confidence, its size below, and what a pointer reads."""
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
        f'<rect class="hit" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{foot - _TOP:.1f}"/>'
        + box("bar", up(item.accuracy), up(0))
        + box("over" if item.confidence > item.accuracy else "under", up(item.accuracy), up(item.confidence))
        + box("crowd", min(crowd(item.size), foot - 1), foot)  # what is there stays visible, however few
        + f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
    )


def _levels(levels: Sequence[float], plot: _Plot) -> Iterator[str]:
    """Horizontal lines with their values at the left."""
    for level in levels:
        y = f"{plot.up(level):.1f}"
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{plot.across.end}" y2="{y}"/>'
        yield label(_LEFT - 6, plot.up(level) + 4, plot.show(level), "end")


def _places(places: Sequence[float], plot: _Plot, *, below: bool = False) -> Iterator[str]:
    """Values of x below the plot, whole numbers only, and what they count at the right end, or below them."""
    right, base = plot.across.end, plot.up.start
    yield f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{right}" y2="{base}"/>'
    step = max(1, math.ceil((places[-1] - places[0]) / (right / 50)))
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, step) if size >= step)
    for tick in range(math.ceil(places[0] / step) * step, math.floor(places[-1]) + 1, step):
        if (
            below or plot.across(tick) < right - 7 * len(plot.x) - 4 * len(str(tick)) - 4
        ):  # there stands what they count
            yield label(plot.across(tick), base + 17, str(tick), "middle")
    yield label((_LEFT + right) / 2, base + 33, plot.x, "middle") if below else label(right, base + 17, plot.x, "end")


def _line(points: Points, plot: _Plot, cls: str) -> str:
    """A curve as a path; a lone point becomes a dot."""
    spots = [f"{plot.across(x):.1f} {plot.up(y):.1f}" for x, y in sorted(points.items())]
    if len(spots) == 1:
        x, y = spots[0].split()
        return f'<circle class="dot {cls}" cx="{x}" cy="{y}" r="3"/>'
    return f'<path class="curve {cls}" d="M{"L".join(spots)}"/>' if spots else ""


def _stops(known: Sequence[tuple[str, Points]], places: Sequence[float], plot: _Plot) -> Iterator[str]:
    """Bands that a pointer can rest on: a vertical line, dots on the curves, and their values in words."""
    stride = math.ceil(len(places) / _MOST_STOPS)
    chosen = sorted({*places[::stride], places[-1]})
    between = [(plot.across(a) + plot.across(b)) / 2 for a, b in pairwise(chosen)]
    for place, (left, right) in zip(chosen, pairwise([_LEFT, *between, plot.across.end]), strict=True):
        there = [
            (cls, name, points[place]) for cls, (name, points) in zip("ab", known, strict=False) if place in points
        ]
        words = f"{plot.x} {place:g}: " + ", ".join(f"{name} {plot.show(y)}" for _, name, y in there)
        at = f"{plot.across(place):.1f}"
        dots = "".join(f'<circle class="dot {cls}" cx="{at}" cy="{plot.up(y):.1f}" r="3.5"/>' for cls, _, y in there)
        yield (
            f'<g class="stop"><title>{html.escape(words)}</title>'
            f'<rect class="hit" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{plot.up.start - _TOP}"/>'
            f'<g class="seen"><line class="now" x1="{at}" y1="{_TOP}" x2="{at}" y2="{plot.up.start}"/>{dots}</g>'
            f"{label(plot.across.end, 12, words, 'end', 'read')}</g>"
        )


def _way(name: str, values: Sequence[float], show: Show) -> str:
    """A curve in words, for those who cannot see it."""
    return f"{name} from {show(values[0])} to {show(values[-1])}" if len(values) > 1 else f"{name} {show(values[0])}"


def label(x: float, y: float, text: str, anchor: str, cls: str = "") -> str:
    """Text at a place of a chart; anchor is start, middle or end."""
    named = f' class="{cls}"' if cls else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def drawing(told: str, parts: Iterable[str], size: tuple[int, int]) -> str:
    """A chart of its parts, width and height, and what it tells in words."""
    head = f'<svg class="chart" role="img" aria-label="{html.escape(told)}" viewBox="0 0 {size[0]} {size[1]}">'
    return "\n".join([head, *parts, "</svg>"])


_INK = """
:root { --ink: #1d2430; --soft: #667085; --line: #e3e6eb; --paper: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --soft: #98a2b3; --line: #2f3744; --paper: #14181f }
}
.chart { font-family: sans-serif; background: var(--paper) }
""".strip()  # what a page gives to its charts

COLOURS = """
:root { --one: #2a6fb8; --two: #b4540a; --warm: #d9661c }
@media (prefers-color-scheme: dark) { :root { --one: #7db7f0; --two: #f2a65e; --warm: #ee8a3c } }
""".strip()

STYLE = """
.chart { display: block; width: 100%; height: auto; overflow: visible }
.chart text { font-size: 11.5px; fill: var(--soft); font-variant-numeric: tabular-nums }
.chart .grid { stroke: var(--line); stroke-width: 1 }
.chart .axis { stroke: var(--soft); stroke-width: 1; opacity: .55 }
.chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.chart .curve.a { stroke: var(--one) }
.chart .curve.b { stroke: var(--two) }
.chart .dot.a { fill: var(--one) }
.chart .dot.b { fill: var(--two) }
.chart .dot.many { opacity: .6 }
.chart .curve.faint { stroke: var(--soft); stroke-width: 1.25; opacity: .6 }
.chart .dot.faint { fill: var(--soft) }
.chart .mark { fill: var(--paper); stroke: var(--one); stroke-width: 2 }
.chart .mark.b { stroke: var(--two) }
.chart .ideal { stroke: var(--ink); stroke-width: 1.25; stroke-dasharray: 4 4; opacity: .7; pointer-events: none }
.chart .bar { fill: var(--one); opacity: .8 }
.chart .over { fill: var(--warm); opacity: .45 }
.chart .under { fill: var(--paper); opacity: .55 }
.chart .crowd { fill: var(--soft); opacity: .5 }
.chart .tiles { image-rendering: pixelated }
.chart .cell { shape-rendering: crispEdges }
.chart .hit { fill: transparent }
.chart .now { stroke: var(--soft); stroke-width: 1 }
.chart .seen, .chart .read { opacity: 0; pointer-events: none }
.chart .read { fill: var(--ink) }
.chart .stop:hover .seen, .chart .stop:hover .read { opacity: 1 }
""".strip()
