"""What all charts share: scales, axes, numbers as an axis shows them, and the SVG around the parts of a chart."""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from vitrail.errors import ConfigError
from vitrail.report.styles import css

Show = Callable[[float], str]
Range = tuple[float, float]

WIDTH, HEIGHT = 420, 230  # of a chart, in its own units; a page scales it
SMALL = 300, 170  # of a small chart
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 22, 26  # margins around the plot
ANYWHERE = (-math.inf, math.inf)
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(NamedTuple):
    """A linear scale from values to positions in the chart."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.end - self.start)


class Plot(NamedTuple):
    """The scales of the x and y axes, the name of x, and how y is written."""

    across: Scale
    up: Scale
    x: str
    show: Show


def ticks(low: float, high: float, count: int = 5, *, within: Range = ANYWHERE) -> list[float]:
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
    """A share as per cent, with one decimal where it is not a whole number."""
    return f"{100 * value:.4g} %" if abs(100 * value - round(100 * value)) < 1e-9 else f"{100 * value:.1f} %"


def alone(svg: str) -> str:
    """A chart as an SVG file that needs no page around it."""
    style = "\n".join(["<style>", *map(css, ("chart_alone", "colours", "charts")), "</style>"])
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'


def y_axis(levels: Sequence[float], plot: Plot) -> Iterator[str]:
    """The y axis: horizontal lines with their values at the left."""
    for level in levels:
        y = f"{plot.up(level):.1f}"
        yield f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{plot.across.end}" y2="{y}"/>'
        yield label(LEFT - 6, plot.up(level) + 4, plot.show(level), "end")


def label(x: float, y: float, text: str, anchor: str, cls: str = "") -> str:
    """Text at a position of a chart; anchor is start, middle or end."""
    named = f' class="{cls}"' if cls else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def drawing(description: str, parts: Iterable[str], size: tuple[int, int]) -> str:
    """A chart of its parts, with a description for screen readers, width and height."""
    head = f'<svg class="chart" role="img" aria-label="{html.escape(description)}" viewBox="0 0 {size[0]} {size[1]}">'
    return "\n".join([head, *parts, "</svg>"])
