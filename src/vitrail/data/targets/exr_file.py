"""One channel of an OpenEXR file: scan lines, plain or ZIP-compressed.

By hand: depth needs one plane of floats, for which a compiled package would be the only dependency of its kind, and
files come from anywhere.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_MAGIC = b"\x76\x2f\x31\x01"
_TILED, _DEEP, _MULTIPART = 0x200, 0x800, 0x1000
_TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<u4"), 1: np.dtype("<f2"), 2: np.dtype("<f4")}
_LINES = {0: 1, 2: 1, 3: 16}  # compression -> lines of a block: none, ZIPS, ZIP
_WANTED = ("Z", "depth", "Depth", "Y", "R", "V")  # channels that hold depth, the likeliest first
_MOST_ATTRIBUTES = 1000
_MOST_BYTES, _MOST_IN_BLOCK = 1 << 32, 1 << 28  # of all channels, unpacked: a small file may claim any number
_LONGEST_SIDE = 1 << 16


class _Header(NamedTuple):
    channels: dict[str, np.dtype[Any]]  # in the order of the file
    compression: int
    height: int
    width: int
    first: int  # the number of the first line
    end: int  # where the header ends


def read_exr(data: bytes, max_pixels: int) -> np.ndarray[Any, Any]:
    """The channel that holds depth, or the only one, H W; ValueError if the file is damaged or of another kind."""
    try:
        header = _header(data)
        sides = header.width, header.height
        if not (0 < min(sides) <= max(sides) <= _LONGEST_SIDE and header.height * header.width <= max_pixels):
            raise ValueError(f"it has {header.width:,} x {header.height:,} pixels")
        name = next((name for name in _WANTED if name in header.channels), None)
        if name is None and len(header.channels) > 1:
            raise ValueError(f"none of its channels is called Z or depth: {', '.join(header.channels)}")
        return _plane(data, header, name or next(iter(header.channels)))
    except (struct.error, IndexError, OverflowError, zlib.error, StopIteration) as error:
        raise ValueError(f"it is damaged or truncated ({error})") from error


def _plane(data: bytes, header: _Header, name: str) -> np.ndarray[Any, Any]:
    names = list(header.channels)
    before = sum(header.channels[one].itemsize for one in names[: names.index(name)]) * header.width
    line = sum(dtype.itemsize for dtype in header.channels.values()) * header.width  # bytes
    dtype, lines = header.channels[name], _LINES[header.compression]
    if line * header.height > _MOST_BYTES or line * lines > _MOST_IN_BLOCK:
        raise ValueError(f"its {len(names):,} channels have {line * header.height:,} bytes, which are too many")
    blocks = -(-header.height // lines)
    pixels = np.zeros((header.height, header.width), dtype)
    for offset in struct.unpack_from(f"<{blocks}Q", data, header.end):
        row, size = struct.unpack_from("<ii", data, offset)
        row -= header.first
        if not 0 <= row < header.height or not 0 <= size <= len(data) - offset - 8:
            raise ValueError("it is damaged: a block is outside of the picture or the file")
        count = min(lines, header.height - row)
        block = _unpacked(data[offset + 8 : offset + 8 + size], count * line, header.compression)
        for at in range(count):
            pixels[row + at] = np.frombuffer(block, dtype, header.width, at * line + before)
    return pixels


def _unpacked(data: bytes, size: int, compression: int) -> bytes:
    """The bytes of a block; one that would not shrink is stored as it is."""
    if compression == 0 or len(data) == size:
        if len(data) != size:
            raise ValueError("it is damaged: a block has another size than its lines")
        return data
    found = np.frombuffer(zlib.decompressobj().decompress(data, size), np.uint8)
    if len(found) != size:
        raise ValueError("it is damaged: a block has another size than its lines")
    steps = found.copy()
    steps[1:] -= 128  # each byte is the difference to the one before it, modulo 256
    halves = np.cumsum(steps, dtype=np.uint8)
    woven = np.empty(size, np.uint8)
    woven[::2], woven[1::2] = halves[: (size + 1) // 2], halves[(size + 1) // 2 :]
    return woven.tobytes()


def _header(data: bytes) -> _Header:
    if data[:4] != _MAGIC:
        raise ValueError("it is not an OpenEXR file")
    (version,) = struct.unpack_from("<I", data, 4)
    if version & (_TILED | _DEEP | _MULTIPART):
        raise ValueError("it has tiles, deep data or several parts; save it as scan lines")
    attributes, end = _attributes(data)
    missing = {"channels", "compression", "dataWindow"} - attributes.keys()
    if missing:
        raise ValueError(f"its header has no {', '.join(sorted(missing))}")
    compression = attributes["compression"][0]
    if compression not in _LINES:
        raise ValueError(f"its compression (number {compression}) is not supported; save it with ZIP or without")
    left, top, right, bottom = struct.unpack("<iiii", attributes["dataWindow"])
    channels = dict(_channels(attributes["channels"]))
    return _Header(channels, compression, bottom - top + 1, right - left + 1, top, end)


def _attributes(data: bytes) -> tuple[dict[str, bytes], int]:
    """The attributes of a header by name, and where it ends."""
    found: dict[str, bytes] = {}
    at = 8
    for _ in range(_MOST_ATTRIBUTES):
        if data[at] == 0:
            return found, at + 1
        name, at = _text(data, at)
        _, at = _text(data, at)
        (size,) = struct.unpack_from("<i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise ValueError("it is damaged: an attribute is longer than the file")
        found[name] = data[at + 4 : at + 4 + size]
        at += 4 + size
    raise ValueError("it is damaged: its header does not end")


def _channels(data: bytes) -> Iterator[tuple[str, np.dtype[Any]]]:
    at = 0
    while data[at] != 0:
        name, at = _text(data, at)
        kind, _, across, down = struct.unpack_from("<iIii", data, at)
        at += 16
        if kind not in _TYPES or (across, down) != (1, 1):
            raise ValueError(f"its channel {name} is of an unknown kind, or not of every pixel")
        yield name, _TYPES[kind]


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at, at + 256)
    if end < 0:
        raise ValueError("it is damaged: a name does not end")
    return data[at:end].decode("latin-1"), end + 1
