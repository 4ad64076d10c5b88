"""Strict JSON: no NaN is written; no doubled key, NaN, endless number or bottomless nesting is read.

All JSON that vitrail writes goes through `to_json`, and all JSON that it reads from models, runs and artefacts through
`from_json` or `read_json`.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIMIT = 64 * 2**20  # bytes of a JSON file
_DIGITS = 20  # of a whole number: 64 bits


def to_json(
    value: Any,
    *,
    indent: int | None = None,
    compact: bool = False,
    ascii_only: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """JSON text; undefined numbers (NaN, infinite) become null, and `default` converts what JSON has no type for."""
    style: dict[str, Any] = {"indent": indent, "ensure_ascii": ascii_only, "allow_nan": False, "default": default}
    if compact:
        style["separators"] = (",", ":")
    try:
        return json.dumps(value, **style)
    except ValueError:  # a number that JSON does not have
        return json.dumps(_defined(value), **style)


def from_json(text: str | bytes) -> Any:
    """What a JSON text holds; ValueError for anything that is not strictly JSON, in one sentence."""
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_int=_whole, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:  # which holds the whole text
        raise ValueError(f"it is not UTF-8 text (byte {error.start:,})") from None


def read_json(file: Path, *, limit: int = LIMIT) -> Any:
    """What a JSON file holds; ValueError where it is not strictly JSON or larger than `limit` bytes."""
    if not file.is_file():
        raise ValueError("it is not a regular file")
    with file.open("rb") as opened:
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    return from_json(data)


def _defined(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _defined(item) for key, item in value.items()}
    return [_defined(item) for item in value] if isinstance(value, list | tuple) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} appears twice")
    return found


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits; the most is {_DIGITS}")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits[:40])
