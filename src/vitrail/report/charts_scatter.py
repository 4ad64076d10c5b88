"""Charts of numbers: truth against prediction, histograms, and bars, as inline SVG."""

import html
import math
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from vitrail.errors import ConfigError
from vitrail.report.charts_axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SMALL,
    TOP,
    WIDTH,
    Plot,
    Scale,
    Show,
    drawing,
    label,
    plain,
    ticks,
    y_axis,
)

_MOST_DOTS = 1000  # more would only make the page heavy
_MOST_BINS = 40
_LETTER = 6.5  # units of width that a letter takes


def scatter(
    title: str,
    truth: Sequence[float],
    predicted: Sequence[float],
    *,
    band: float | None = None,
    x: str = "truth",
    y: str = "prediction",
    show: Show = plain,
    small: bool = False,
) -> str:
    """Predictions against true values, one dot a sample, with the identity line, as SVG.

    `band` is the half width of the prediction interval, drawn around the line. Of more than 1,000 samples every n-th is
    drawn.
    """
    if len(truth) != len(predicted):
        raise ConfigError(f"the chart {title!r} has {len(truth)} true and {len(predicted)} predicted values")
    pairs = [(a, b) for a, b in zip(truth, predicted, strict=True) if isfinite(a) and isfinite(b)]
    if not pairs:
        raise ConfigError(f"the chart {title!r} has no points")
    levels = ticks(min(map(min, pairs)), max(map(max, pairs)), 4 if small else 7)
    width, base = (SMALL[0], SMALL[1] + 50) if small else (WIDTH, HEIGHT + 80)
    low, high = levels[0], levels[-1]
    plot = Plot(Scale(low, high, LEFT, width - RIGHT), Scale(low, high, base, TOP), x, show)
    parts = [*y_axis(levels, plot), *_x_axis(levels, plot)]
    if band is not None:
        half = min(band, high - low)
        corners = [(low, low), (low, low + half), (high - half, high), (high, high), (high, high - half)]
        spots = (f"{plot.across(a):.1f} {plot.up(b):.1f}" for a, b in (*corners, (low + half, low)))
        words = html.escape(f"prediction interval: \N{PLUS-MINUS SIGN} {show(band)}")
        parts.append(f'<path class="band" d="M{"L".join(spots)}z"><title>{words}</title></path>')
    every = math.ceil(len(pairs) / _MOST_DOTS)
    dots = (f'<path d="M{plot.across(a):.1f} {plot.up(b):.1f}h0"/>' for a, b in pairs[::every])
    parts += [f'<g class="cloud">{"".join(dots)}</g>', label(LEFT, 12, y, "start")]
    ends = f'x1="{plot.across(low):.1f}" y1="{plot.up(low):.1f}" x2="{plot.across(high):.1f}" y2="{plot.up(high):.1f}"'
    parts.append(f'<line class="ideal" {ends}/>')
    error = sum(abs(a - b) for a, b in pairs) / len(pairs)
    description = f"{title}: {y} by {x} of {len(pairs):,} samples, mean absolute error {show(error)}"
    return drawing(description, parts, (width, base + 38))


def histogram(
    title: str, values: Sequence[float], *, x: str, bins: int | None = None, show: Show = plain, small: bool = False
) -> str:
    """A histogram as SVG, with a line at zero where zero is in its range."""
    known = [value for value in values if isfinite(value)]
    if not known:
        raise ConfigError(f"the chart {title!r} has no values")
    width, height = SMALL if small else (WIDTH, HEIGHT)
    across = ticks(min(known), max(known), 4 if small else 6)
    step = (across[-1] - across[0]) / (bins or min(_MOST_BINS, max(8, math.ceil(2 * len(known) ** (1 / 3)))))
    edges = [across[0] + step * index for index in range(round((across[-1] - across[0]) / step) + 1)]
    counts = [0] * (len(edges) - 1)
    for value in known:
        counts[min(int((value - edges[0]) / step), len(counts) - 1)] += 1
    levels = [level for level in ticks(0, max(counts), 4) if level == round(level)]
    plot = Plot(
        Scale(edges[0], edges[-1], LEFT, width - RIGHT), Scale(0, levels[-1], height - BOTTOM, TOP), x, "{:,.0f}".format
    )
    parts = [*y_axis(levels, plot), *_x_axis(across, plot, show)]
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        words = f"{show(left)} to {show(right)}: {count:,}"
        start, end, top = plot.across(left), plot.across(right), plot.up(count)
        box = f'width="{max(end - start - 1, 0.5):.1f}" height="{plot.up(0) - top:.1f}"'
        parts.append(
            f'<g class="stop"><title>{html.escape(words)}</title><rect class="hit" x="{start:.1f}" y="{TOP}" '
            f'width="{end - start:.1f}" height="{plot.up(0) - TOP:.1f}"/><rect class="bar" x="{start + 0.5:.1f}" '
            f'y="{top:.1f}" {box}/>{label(plot.across.end, 12, words, "end", "read")}</g>'
        )
    if edges[0] < 0 < edges[-1]:
        parts.append(_upright(plot.across(0), plot))
    parts.append(label(LEFT, 12, "count", "start"))
    description = f"{title}: {len(known):,} values of {x} from {show(min(known))} to {show(max(known))}"
    return drawing(description, parts, (width, height + 16))


def _x_axis(levels: Sequence[float], plot: Plot, show: Show | None = None) -> list[str]:
    """The axis below the plot with its values, and the name of x below them."""
    right, base = plot.across.end, plot.up.start
    every = math.ceil(len(levels) * max(len((show or plot.show)(level)) for level in levels) * _LETTER / (right - LEFT))
    return [
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{right}" y2="{base}"/>',
        *(label(plot.across(level), base + 16, (show or plot.show)(level), "middle") for level in levels[::every]),
        label((LEFT + right) / 2, base + 32, plot.x, "middle"),
    ]


def _upright(at: float, plot: Plot) -> str:
    return f'<line class="ideal" x1="{at:.1f}" y1="{plot.up.end}" x2="{at:.1f}" y2="{plot.up.start}"/>'
