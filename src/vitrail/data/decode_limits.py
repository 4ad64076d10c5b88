"""What an image file may ask for before it is decoded: pixels, tiles, scans, and the length of its header.

Pillow checks the size of the image alone. A file of a few bytes can ask for more: a TIFF for a tile of any size, a JPEG
for thousands of passes over the image, a PPM for a comment of megabytes, which Pillow reads byte by byte.
"""

import re
import struct
from collections.abc import Sequence

from PIL import Image

from vitrail.errors import BrokenImage

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
MAX_PIXELS = 100_000_000  # per image: 300 MB decoded; more is a mistake or an attack
MAX_SCANS = 100  # of a JPEG: progressive ones have about ten, and each scan is a pass over all pixels
MAX_SEGMENTS = 10_000  # of a JPEG
_MAX_HEADER, _MAX_COMMENTS, _PLAIN_BYTES = 1 << 16, 1000, 16  # of a PPM; bytes per number written out in digits
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_NAMES = {"WEBP": "WebP"}

# In the data of a scan, FF 00 is a byte FF, and FF D0 to FF D7 are restarts. Anything else is a marker.
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
_COMMENT = re.compile(rb"#[^\r\n]*")


def format_names(formats: Sequence[str]) -> str:
    """Such as "JPEG, PNG or WebP"."""
    names = [_NAMES.get(one, one) for one in formats]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def too_large(name: str, pixels: str, most: int) -> BrokenImage:
    """The error for too many pixels."""
    return BrokenImage(f"{name} cannot be decoded: it has {pixels} pixels, the limit is {most:,}; resize it")


def check_file(data: bytes, name: str, max_pixels: int, formats: Sequence[str] = FORMATS) -> None:
    """Raises BrokenImage for a file of these formats that Pillow should not even open."""
    if data[:2] == b"\xff\xd8" and "JPEG" in formats:
        _check_jpeg(data, name)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP" and "WEBP" in formats:
        width, height = _webp_canvas(data)
        if width * height > max_pixels:  # memory for it is allocated by opening the file
            raise too_large(name, f"{width:,} x {height:,}", max_pixels)
    elif "PPM" in formats and data[:1] == b"P" and data[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6", b"f"):
        _check_ppm(data, name)


def check_image(image: Image.Image, name: str, max_pixels: int) -> None:
    """Raises BrokenImage when an opened image, or one of its tiles, has too many pixels."""
    if image.width * image.height > max_pixels:
        raise too_large(name, f"{image.width:,} x {image.height:,}", max_pixels)
    tags = getattr(image, "tag_v2", {})
    width, length = (tags.get(tag, 1) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    if not all(isinstance(value, int) for value in (width, length)):
        raise BrokenImage(f"{name} cannot be decoded: the size of its tiles is damaged")
    if width * length > max_pixels:
        raise too_large(name, f"tiles of {width:,} x {length:,}", max_pixels)


def _check_jpeg(data: bytes, name: str) -> None:
    at, scans, segments = 2, 0, 0
    while (match := _MARKER.search(data, at)) is not None:
        marker, at = match[1][0], match.end()
        if marker == 0xD9:  # the end of the image; anything may follow
            return
        if marker in (0x01, 0xD8):  # no length follows
            continue
        scans, segments = scans + (marker == 0xDA), segments + 1
        if scans > MAX_SCANS:
            raise BrokenImage(f"{name} cannot be decoded: a JPEG with more than {MAX_SCANS} scans; save it again")
        if segments > MAX_SEGMENTS:
            raise BrokenImage(f"{name} cannot be decoded: a JPEG with more than {MAX_SEGMENTS:,} segments")
        if at + 2 > len(data):
            return
        at += struct.unpack_from(">H", data, at)[0]


def _webp_canvas(data: bytes) -> tuple[int, int]:
    """Width and height from the first chunk (RFC 9649); 0 x 0 if it is damaged, which Pillow will say."""
    kind, head = data[12:16], data[20:30]
    if len(head) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", head, 6)
    return width & 0x3FFF, height & 0x3FFF


def _check_ppm(data: bytes, name: str) -> None:
    tokens = _COMMENT.sub(b" ", data[:_MAX_HEADER]).split(maxsplit=4)
    if len(data) > _MAX_HEADER and len(tokens) < 4:
        raise BrokenImage(f"{name} cannot be decoded: a PPM with a header of more than {_MAX_HEADER:,} bytes")
    if data[1:2] not in (b"1", b"2", b"3") or len(tokens) < 3 or not (tokens[1] + tokens[2]).isdigit():
        return
    numbers = int(tokens[1][:10]) * int(tokens[2][:10]) * (3 if data[1:2] == b"3" else 1)
    if data.count(b"#") > _MAX_COMMENTS or len(data) > _MAX_HEADER + _PLAIN_BYTES * numbers:
        raise BrokenImage(f"{name} cannot be decoded: a PPM that consists mostly of comments or blanks")
