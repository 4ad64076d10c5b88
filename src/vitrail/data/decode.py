"""Decodes image files to uint8 pixels: upright, opaque, 8 bits, grey or RGB.

Pillow decodes PNG, JPEG, WebP, BMP, TIFF, GIF and PPM; simplejpeg, if installed, decodes plain JPEGs faster, with the
same pixels. Transparency is blended with white, 16 bits are scaled to 8, CMYK becomes RGB, EXIF rotation is applied,
and the first frame of an animation is used.
"""

import functools
import importlib
import re
import struct
import threading
import warnings
from io import BytesIO
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vitrail.errors import BrokenImage

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
MAX_PIXELS = 100_000_000  # per image: 300 MB decoded; more is a mistake or an attack

Channels = Literal[1, 3] | None

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")


class Header(NamedTuple):
    """The header of an image file."""

    format: str
    width: int
    height: int
    kind: Literal["grey", "colour", "palette", "CMYK"]
    alpha: bool
    deep: bool  # 16 bits per channel


def decode(data: bytes, *, channels: Channels = None, name: str = "the image", max_pixels: int = MAX_PIXELS) -> Tensor:
    """An image file as uint8 C H W; without `channels`, C is 1 for a grey image and 3 for any other."""
    pixels = _decode_plain_jpeg(data, channels, max_pixels)
    if pixels is None:
        with _quiet:
            pixels = _decode_by_pillow(data, channels, name, max_pixels)
    tensor = torch.from_numpy(pixels)
    return tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1).contiguous()  # H W [3] -> C H W


def inspect(data: bytes, *, name: str = "the image") -> Header:
    """Reads the header of an image file without decoding pixels."""
    with _quiet:
        image = _open(data, name)
        kind: Literal["grey", "colour", "palette", "CMYK"] = "colour"
        if image.mode in ("P", "PA"):
            kind = "palette"
        elif image.mode in (*_GREY, *_DEEP, "I", "F"):
            kind = "grey"
        elif image.mode == "CMYK":
            kind = "CMYK"
        return Header(
            format="JPEG" if image.format == "MPO" else str(image.format),
            width=image.width,
            height=image.height,
            kind=kind,
            alpha=_has_alpha(image),
            deep=image.mode in (*_DEEP, "I", "F") or _deep_raw_mode(image),
        )


class _Quiet:
    """Silences Pillow's warnings while any thread decodes: `catch_warnings` alone is not thread-safe."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._saved: warnings.catch_warnings[None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._saved is not None:
                self._saved.__exit__(kind, value, trace)


_quiet = _Quiet()


def _open(data: bytes, name: str) -> Image.Image:
    if not data:
        raise BrokenImage(f"{name} cannot be decoded: the file is empty (0 bytes)")
    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise BrokenImage(f"{name} cannot be decoded: {_what_else(data)}") from error
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))  # "Image size (900000000 pixels) exceeds limit of ..."
        raise BrokenImage(_too_large(name, f"{int(count[0]):,}" if count else "too many", MAX_PIXELS)) from error
    except Exception as error:  # a damaged header can raise anything
        raise BrokenImage(f"{name} cannot be decoded: {_reason(error)}") from error


def _too_large(name: str, pixels: str, most: int) -> str:
    return f"{name} cannot be decoded: it has {pixels} pixels, the limit is {most:,}; resize it"


def _what_else(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<body")):
        return "it is an HTML page, not an image (perhaps a failed download)"
    if start.startswith((b"<svg", b"<?xml")):
        return "it is XML (SVG?), not a pixel image"
    if data[4:12] in (b"ftypheic", b"ftypavif", b"ftypheif", b"ftypmif1"):
        return "it is HEIC or AVIF; convert it to JPEG or PNG"
    if len(data) < 32:
        return f"it is truncated ({len(data)} bytes)"
    return "it is not a PNG, JPEG, WebP, BMP, TIFF, GIF or PPM image, or its header is damaged"


def _reason(error: Exception) -> str:
    text = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
    return f"it is damaged or truncated ({text})"


def _decode_by_pillow(data: bytes, channels: Channels, name: str, max_pixels: int) -> np.ndarray[Any, Any]:
    """H W for one channel, H W 3 for three."""
    image = _open(data, name)
    if image.width * image.height > max_pixels:
        raise BrokenImage(_too_large(name, f"{image.width:,} x {image.height:,}", max_pixels))
    try:
        image.load()
        image = _upright(image)
        pixels = _opaque(image, name)
    except BrokenImage:
        raise
    except Exception as error:  # damaged pixels can raise anything
        raise BrokenImage(f"{name} cannot be decoded: {_reason(error)}") from error
    if channels == 1 and pixels.ndim == 3:
        return np.array(Image.fromarray(pixels).convert("L"))
    if channels == 3 and pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return pixels


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata does not matter for the pixels
        orientation = 1
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _has_alpha(image: Image.Image) -> bool:
    return "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info


def _deep_raw_mode(image: Image.Image) -> bool:
    """Whether Pillow reads 16 bits as 8; its mode does not show this for colour images."""
    tiles = getattr(image, "tile", ())
    return any("16" in str(part) for tile in tiles for part in tile[3:])


def _opaque(image: Image.Image, name: str) -> np.ndarray[Any, Any]:
    """H W for a grey image, H W 3 for any other; uint8."""
    if image.mode in _DEEP or (image.mode == "I" and image.format in ("PNG", "PPM")):
        deep = np.asarray(image).astype(np.uint32)
        return ((deep.clip(0, 65535) * 255 + 32767) // 65535).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise BrokenImage(
            f"{name} cannot be decoded: the range of its 32-bit pixels is unknown; convert it to 8 or 16 bits"
        )
    grey = image.mode in _GREY
    if not _has_alpha(image):
        target = "L" if grey else "RGB"
        return np.array(image if image.mode == target else image.convert(target))
    layers = np.asarray(image.convert("LA" if grey else "RGBA")).astype(np.uint16)  # H W 2 or H W 4
    alpha = layers[:, :, -1:]
    laid = ((layers[:, :, :-1] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return laid[:, :, 0] if grey else laid


# --- plain JPEG ------------------------------------------------------------------------------------------------------


@functools.cache
def _simplejpeg() -> Any:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _decode_plain_jpeg(data: bytes, channels: Channels, max_pixels: int) -> np.ndarray[Any, Any] | None:
    """H W or H W 3; None if simplejpeg is missing or the file is not a plain JPEG, so Pillow must decode it."""
    if data[:2] != b"\xff\xd8" or (turbo := _simplejpeg()) is None:
        return None
    found = _plain_frame(data)
    if found is None or found[0] * found[1] > max_pixels:
        return None
    height, width, layers = found
    grey = layers == 1
    try:
        pixels = turbo.decode_jpeg(data, colorspace="GRAY" if grey else "RGB")  # H W 1 or H W 3
    except ValueError:
        return None
    if pixels.shape[:2] != (height, width):
        return None
    if grey:
        return np.repeat(pixels, 3, axis=2) if channels == 3 else pixels[:, :, 0]
    return np.array(Image.fromarray(pixels).convert("L")) if channels == 1 else pixels


def _plain_frame(data: bytes) -> tuple[int, int, int] | None:
    """Height, width and channels of an upright baseline JPEG, grey or YCbCr; None for any other file."""
    at, frame = 2, None
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        body = data[at + 4 : at + 2 + size]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xDA:  # the scan begins: the header is complete
            return frame
        if marker == 0xC0 and len(body) >= 6 and body[0] == 8 and body[5] in (1, 3):
            frame = (*struct.unpack_from(">HH", body, 1), body[5])
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # progressive, lossless, 12 bits, ...
            return None
        if marker == 0xEE and body[:5] == b"Adobe":  # the channels may be RGB or CMYK
            return None
        if marker == 0xE1 and body[:6] == b"Exif\0\0" and _exif_orientation(body[6:]) != 1:
            return None
        at += 2 + size
    return None


def _exif_orientation(tiff: bytes) -> int:
    """The orientation in an EXIF block; 1 if there is none, 0 if the block is damaged."""
    try:
        order = {b"II": "<", b"MM": ">"}[tiff[:2]]
        start = struct.unpack_from(order + "I", tiff, 4)[0]
        for entry in range(struct.unpack_from(order + "H", tiff, start)[0]):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, start + 2 + 12 * entry)
            if tag == _ORIENTATION and kind == 3:
                return int(value)
    except (KeyError, struct.error):
        return 0
    return 1
