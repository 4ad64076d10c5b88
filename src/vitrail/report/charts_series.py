"""A chart of up to six series with their intervals, on linear or logarithmic axes, as inline SVG.

svg = series("Time", [Series("attention", [(64, 0.1), (256, 1.7)])], x="tokens", y="ms", log_x=True, log_y=True)
"""

import html
import math
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from vitrail.errors import ConfigError
from vitrail.report.charts_axes import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Scale, drawing, label, plain, ticks

COLOURS = "abcdef"
_ROW, _LETTER = 16, 6.3  # height of a row of the key, and width of a letter in it


class Series(NamedTuple):
    """A name and its points x y; `band` has the low and high end at each of them. One that is expected is `dashed`."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    dashed: bool = False


class _Axis(NamedTuple):
    """A scale with its ticks; a logarithmic one has powers of ten."""

    scale: Scale
    levels: Sequence[float]
    log: bool

    def __call__(self, value: float) -> float:
        return self.scale(math.log10(value) if self.log else value)


def series(
    title: str, shown: Sequence[Series], *, x: str, y: str, log_x: bool = False, log_y: bool = False
) -> str:  # fmt: skip
    """Series over one x axis, as SVG; on a logarithmic axis, values that are not positive are left out."""
    if not 1 <= len(shown) <= len(COLOURS):
        raise ConfigError(f"the chart {title!r} has {len(shown)} series; it shows 1 to {len(COLOURS)}")
    known = [_visible(one, log_x=log_x, log_y=log_y) for one in shown]
    if not any(one.points for one in known):
        raise ConfigError(f"the chart {title!r} has no points")
    rows = _key_rows([one.name for one in known])
    top = 24 + _ROW * len(rows)
    base = top + HEIGHT - BOTTOM
    xs = [point[0] for one in known for point in one.points]
    ys = [point[1] for one in known for point in one.points] + [
        end for one in known for ends in one.band for end in ends
    ]
    across, up = _axis(xs, (LEFT, WIDTH - RIGHT), log=log_x, tight=True), _axis(ys, (base, top), log=log_y)
    parts = [
        *_grid(across, up, base),
        label(2, 12, y, "start"),
        label((LEFT + WIDTH - RIGHT) / 2, base + 33, x, "middle"),
    ]
    for cls, one in zip(COLOURS, known, strict=False):
        parts += _drawn(one, cls, across, up, x)
    parts += _key(rows, known)
    ways = [f"{one.name} from {plain(one.points[0][1])} to {plain(one.points[-1][1])}" for one in known if one.points]
    return drawing(f"{title}, {y} by {x}: {'; '.join(ways)}", parts, (WIDTH, base + 40))


def _visible(one: Series, *, log_x: bool, log_y: bool) -> Series:
    """A series without what its axes cannot show, in the order of x."""
    bands = one.band or [(y, y) for _, y in one.points]
    kept = [
        (point, ends)
        for point, ends in zip(one.points, bands, strict=True)
        if all(map(isfinite, (*point, *ends)))
        and (point[0] > 0 or not log_x)
        and (min(point[1], *ends) > 0 or not log_y)
    ]
    kept.sort(key=lambda pair: pair[0][0])
    return one._replace(points=[point for point, _ in kept], band=[ends for _, ends in kept] if one.band else ())


def _axis(values: Sequence[float], ends: tuple[float, float], *, log: bool, tight: bool = False) -> _Axis:
    """The axis that encloses values: round numbers, or powers of ten with 2 and 5 between them where these are few."""
    low, high = min(values), max(values)
    if not log:
        levels = ticks(low, high)
        if tight and low < high:
            return _Axis(Scale(low, high, *ends), [level for level in levels if low <= level <= high], log=False)
        return _Axis(Scale(levels[0], levels[-1], *ends), levels, log=False)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    first, last = (first, last) if first < last else (first, first + 1)
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    stride = max(1, math.ceil((last - first) / 6))
    levels = [step * 10.0**power for power in range(first, last + 1, stride) for step in steps]
    scale = Scale(math.log10(low), math.log10(high), *ends) if tight and low < high else Scale(first, last, *ends)
    levels = [level for level in levels if scale.low - 1e-9 <= math.log10(level) <= scale.high + 1e-9]
    return _Axis(scale, levels, log=True)


def _grid(across: _Axis, up: _Axis, base: float) -> Iterator[str]:
    for level in up.levels:
        height = up(level)
        yield f'<line class="grid" x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}"/>'
        yield label(LEFT - 6, height + 4, plain(level), "end")
    yield f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>'
    for level in across.levels:
        yield label(across(level), base + 17, plain(level), "middle")


def _drawn(one: Series, cls: str, across: _Axis, up: _Axis, x: str) -> Iterator[str]:
    """A series: its band, its line, and a dot with a tooltip at each point."""
    if one.band:
        ends = list(zip(one.points, one.band, strict=True))
        around = [(point[0], low) for point, (low, _) in ends] + [
            (point[0], high) for point, (_, high) in reversed(ends)
        ]
        path = "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in around)
        yield f'<path class="band {cls}" d="M{path}Z"/>'
    path = "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in one.points)
    if len(one.points) > 1:
        yield f'<path class="curve {cls}{" dashed" if one.dashed else ""}" d="M{path}"/>'
    for at, value in one.points if not one.dashed or len(one.points) == 1 else ():
        words = html.escape(f"{one.name}, {x} {plain(at)}: {plain(value)}")
        spot = f'cx="{across(at):.1f}" cy="{up(value):.1f}" r="2.5"'
        yield f'<circle class="dot {cls}" {spot}><title>{words}</title></circle>'


def _key_rows(names: Sequence[str]) -> list[list[int]]:
    """Which names stand in which row of the key."""
    rows: list[list[int]] = [[]]
    used = 0.0
    for index, name in enumerate(names):
        width = 33 + _LETTER * len(name)
        if rows[-1] and used + width > WIDTH - RIGHT - 4:
            rows.append([])
            used = 0.0
        rows[-1].append(index)
        used += width
    return rows


def _key(rows: Sequence[Sequence[int]], shown: Sequence[Series]) -> Iterator[str]:
    for number, row in enumerate(rows):
        x, y = 4.0, 24.0 + _ROW * number
        for index in row:
            dashed = " dashed" if shown[index].dashed else ""
            yield f'<path class="curve {COLOURS[index]} named{dashed}" d="M{x:.1f} {y:.1f}h14"/>'
            yield label(x + 19, y + 4, shown[index].name, "start")
            x += 33 + _LETTER * len(shown[index].name)
