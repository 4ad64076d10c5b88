"""Values as people read them: 1,234; 1.23 G; 1.23 MiB; 12.3 %."""

from collections.abc import Sequence
from typing import Literal

Value = str | int | float | bool | None
Unit = Literal["", "si", "bytes", "share", "path"]

NUMERIC = ("si", "bytes", "share")  # units whose columns are aligned to the right


def show(value: Value, unit: Unit = "") -> str:
    """A value as text in the form of its unit."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "\N{EN DASH}", True: "yes", False: "no"}[value]
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "si":
        return _scaled(value, 1000, ("", "k", "M", "G", "T", "P"))
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time as people say it: 48 s, 7 min 5 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _scaled(value: float, step: int, prefixes: Sequence[str]) -> str:
    power = 0
    while abs(value) >= step and power < len(prefixes) - 1:
        value, power = value / step, power + 1
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if power == 0 and isinstance(value, int):
        digits = str(value)
    return f"{digits} {prefixes[power]}".rstrip()
