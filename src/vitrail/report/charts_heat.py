"""Heat maps as inline SVG: a matrix in colours, and a picture of many small maps.

svg = heat("CKA", [[1.0, 0.4], [0.4, 1.0]], rows=["0", "1"], columns=["0", "1"], x="layer", y="layer")
"""

import html
import math
from collections.abc import Iterator, Sequence
from math import isfinite

from vitrail.errors import ConfigError
from vitrail.report.charts_axes import Show, drawing, label, plain

_WIDTH, _TALLEST = 420, 300  # of the picture and of a matrix, in its own units; a page scales it
_LEFT, _TOP = 46, 22  # margins of a matrix
_CELL = 32.0  # the largest side of a value
_RAMP = ((24, 26, 72), (40, 76, 146), (34, 128, 156), (70, 176, 132), (168, 214, 96), (250, 241, 150))  # low to high


def heat(
    title: str,
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x: str,
    y: str,
    span: tuple[float, float] = (0.0, 1.0),
    show: Show = plain,
) -> str:
    """A matrix as coloured cells, the first row at the bottom, as SVG; `span` holds the darkest and brightest value."""
    if not values or not columns or len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        raise ConfigError(f"the chart {title!r} has {len(rows)} x {len(columns)} names for other numbers of values")
    cell = min(_CELL, (_WIDTH - _LEFT - 56) / len(columns), _TALLEST / len(rows))
    right, base = _LEFT + cell * len(columns), _TOP + cell * len(rows)
    parts = []
    for index, (name, row) in enumerate(zip(rows, values, strict=True)):
        for position, (column, value) in enumerate(zip(columns, row, strict=True)):
            words = f"{y} {name}, {x} {column}: {show(value) if isfinite(value) else 'unknown'}"
            corner = f'x="{_LEFT + position * cell:.2f}" y="{base - (index + 1) * cell:.2f}"'
            sides = (
                f'width="{cell + 0.3:.2f}" height="{cell + 0.3:.2f}"'  # cells overlap a little, so that no gap shows
            )
            parts.append(
                f'<g class="stop"><title>{html.escape(words)}</title><rect class="cell" {corner} {sides} '
                f'fill="{_hex(value, span)}"/>{label(_LEFT, 12, words, "start", "read")}</g>'
            )
    every = math.ceil(14 / cell)  # names that would touch one another are left out
    parts += [label(_LEFT - 6, base - (i + 0.5) * cell + 4, rows[i], "end") for i in range(0, len(rows), every)]
    wide = math.ceil((6.5 * max(map(len, columns)) + 6) / cell)
    parts += [label(_LEFT + (i + 0.5) * cell, base + 15, columns[i], "middle") for i in range(0, len(columns), wide)]
    parts += [label((_LEFT + right) / 2, base + 31, x, "middle"), label(_LEFT - 6, 12, y, "end")]
    parts += _scale_bar(span, show, (right + 12, _TOP, base))
    description = f"{title}: {y} by {x}, {len(rows)} x {len(columns)} values"
    return drawing(description, parts, (_WIDTH, round(base) + 38))


def tiles(
    title: str,
    picture: str,
    size: tuple[int, int],
    *,
    x: str = "",
    y: str = "",
    span: tuple[float, float] | None = None,
    show: Show = plain,
) -> str:
    """A picture of small maps (`picture` is a data URI) with what its sides count and its colours mean, as SVG.

    The sides have the proportion of `size`, height and width; with `span`, colours go from its first to its second.
    """
    left, top = 20 if y else 0, 8
    width = _WIDTH - left - (50 if span else 0)
    height = width * size[0] / size[1]
    parts = [
        f'<image class="tiles" href="{picture}" x="{left}" y="{top}" width="{width}" height="{height:.1f}" '
        'preserveAspectRatio="none"/>'
    ]
    if x:
        parts.append(label(left + width / 2, top + height + 16, x, "middle"))
    if y:
        middle = f"{top + height / 2:.1f}"
        parts.append(
            f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{html.escape(y)}</text>'
        )
    if span:
        parts += _scale_bar(span, show, (left + width + 10, top, top + height))
    return drawing(title, parts, (_WIDTH, round(top + height + (24 if x else 8))))


def colour(share: float) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, of a value in a heat map; 0 is dark and 1 bright."""
    position = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    step = min(int(position), len(_RAMP) - 2)
    low, high = _RAMP[step], _RAMP[step + 1]
    red, green, blue = (round(a + (position - step) * (b - a)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _hex(value: float, span: tuple[float, float]) -> str:
    share = (value - span[0]) / (span[1] - span[0] or 1.0)
    return "#" + "".join(f"{part:02x}" for part in colour(share)) if isfinite(share) else "var(--line)"


def _scale_bar(span: tuple[float, float], show: Show, position: tuple[float, float, float]) -> Iterator[str]:
    """What colours mean: a bar at x from top to base, and its values."""
    x, top, base = position
    stops = "".join(
        f'<stop offset="{index / (len(_RAMP) - 1):.3g}" stop-color="rgb{stop}"/>' for index, stop in enumerate(_RAMP)
    )
    yield f'<defs><linearGradient id="ramp" x1="0" y1="1" x2="0" y2="0">{stops}</linearGradient></defs>'
    yield f'<rect x="{x:.1f}" y="{top}" width="9" height="{base - top:.1f}" fill="url(#ramp)"/>'
    for share in (0.0, 0.5, 1.0):
        value = span[0] + share * (span[1] - span[0])
        yield label(x + 14, base - share * (base - top) + 4, show(value), "start")
