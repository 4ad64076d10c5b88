"""Decodes image files to arrays of pixels, without torch: processes that only decode start quickly and stay small."""

import functools
import importlib
import re
import struct
import threading
import warnings
from collections.abc import Sequence
from io import BytesIO
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitrail.data.decode_limits import (
    FORMATS,
    MAX_PIXELS,
    MAX_SEGMENTS,
    check_file,
    check_image,
    format_names,
    too_large,
)
from vitrail.errors import BrokenImage, reason

Channels = Literal[1, 3] | None
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

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
_BAND = 1 << 18  # pixels that are converted at a time


class Header(NamedTuple):
    """The header of an image file."""

    format: str
    width: int
    height: int
    kind: Literal["grey", "colour", "palette", "CMYK"]
    alpha: bool
    deep: bool  # 16 bits per channel


def decode_pixels(
    data: bytes,
    *,
    channels: Channels = None,
    name: str = "the image",
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] = FORMATS,
) -> Pixels:
    """An image file as uint8 H W for a grey image or `channels=1`, and H W 3 for any other."""
    pixels = _decode_plain_jpeg(data, channels, max_pixels) if "JPEG" in formats else None
    if pixels is None:
        with _quiet:
            pixels = _decode_by_pillow(data, channels, name, max_pixels, formats)
    return pixels


def decode_values(data: bytes, *, name: str = "the image", max_pixels: int = MAX_PIXELS) -> np.ndarray[Any, Any]:
    """The numbers in an image file, H W: levels, indices of a palette, or floats; neither scaled nor turned."""
    with _quiet:
        image = _open(data, name, max_pixels=max_pixels)
        if image.mode not in ("1", "L", "P", "I", "F", *_DEEP):
            raise BrokenImage(f"{name} has the colours of {image.mode}; expected one number per pixel")
        try:
            return np.array(image).astype(np.uint8) if image.mode == "1" else np.array(image)
        except Exception as error:  # damaged pixels can raise anything
            raise BrokenImage(f"{name} cannot be decoded: {_damage(error)}") from error


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


def _open(data: bytes, name: str, *, max_pixels: int | None = None, formats: Sequence[str] = FORMATS) -> Image.Image:
    """Opens a file within the limits; without `max_pixels`, for its header only."""
    if not data:
        raise BrokenImage(f"{name} cannot be decoded: the file is empty (0 bytes)")
    try:
        check_file(data, name, MAX_PIXELS if max_pixels is None else max_pixels, formats)
        image = Image.open(BytesIO(data), formats=tuple(formats))
        if max_pixels is not None:
            check_image(image, name, max_pixels)
    except BrokenImage:
        raise
    except UnidentifiedImageError as error:
        raise BrokenImage(f"{name} cannot be decoded: {_what_else(data, formats)}") from error
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))  # "Image size (900000000 pixels) exceeds limit of ..."
        raise too_large(name, f"{int(count[0]):,}" if count else "too many", max_pixels or MAX_PIXELS) from error
    except Exception as error:  # a damaged header can raise anything
        raise BrokenImage(f"{name} cannot be decoded: {_damage(error)}") from error
    return image


def _what_else(data: bytes, formats: Sequence[str]) -> str:
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<body")):
        return "it is an HTML page, not an image (perhaps a failed download)"
    if start.startswith((b"<svg", b"<?xml")):
        return "it is XML (SVG?), not a pixel image"
    if data[4:12] in (b"ftypheic", b"ftypavif", b"ftypheif", b"ftypmif1"):
        return "it is HEIC or AVIF; convert it to JPEG or PNG"
    if len(data) < 32:
        return f"it is truncated ({len(data)} bytes)"
    return f"it is not a {format_names(formats)} image, or its header is damaged"


def _damage(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    return f"it is damaged or truncated ({reason(error)})"


def _decode_by_pillow(data: bytes, channels: Channels, name: str, max_pixels: int, formats: Sequence[str]) -> Pixels:
    """H W for one channel, H W 3 for three."""
    image = _open(data, name, max_pixels=max_pixels, formats=formats)
    try:
        image.load()
        image = _upright(image)
        pixels = _opaque(image, name)
    except BrokenImage:
        raise
    except Exception as error:  # damaged pixels can raise anything
        raise BrokenImage(f"{name} cannot be decoded: {_damage(error)}") from error
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


def _opaque(image: Image.Image, name: str) -> Pixels:
    """H W for a grey image, H W 3 for any other; uint8. Some rows at a time, so that memory is needed once only."""
    if image.mode in ("I", "F") and not (image.mode == "I" and image.format in ("PNG", "PPM")):
        raise BrokenImage(
            f"{name} cannot be decoded: the range of its 32-bit pixels is unknown; convert it to 8 or 16 bits"
        )
    grey = image.mode in (*_GREY, *_DEEP, "I")
    pixels = np.empty((image.height, image.width) if grey else (image.height, image.width, 3), np.uint8)
    rows = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        band = image if bottom - top == image.height else image.crop((0, top, image.width, bottom))
        pixels[top:bottom] = _opaque_band(band, grey=grey)
    return pixels


def _opaque_band(image: Image.Image, *, grey: bool) -> Pixels:
    """H W or H W 3."""
    if image.mode in (*_DEEP, "I"):
        deep = np.asarray(image).astype(np.uint32)
        return ((deep.clip(0, 65535) * 255 + 32767) // 65535).astype(np.uint8)
    if not _has_alpha(image):
        target = "L" if grey else "RGB"
        return np.asarray(image if image.mode == target else image.convert(target))
    layers = np.asarray(image.convert("LA" if grey else "RGBA")).astype(np.uint16)  # H W 2 or H W 4
    alpha = layers[:, :, -1:]
    laid = layers[:, :, :-1] * alpha + (255 * (255 - alpha) + 127)
    laid = ((laid + (laid >> 8) + 1) >> 8).astype(np.uint8)  # over 255, exactly, and four times as fast
    return laid[:, :, 0] if grey else laid


# --- plain JPEG ------------------------------------------------------------------------------------------------------


@functools.cache
def _simplejpeg() -> Any:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _decode_plain_jpeg(data: bytes, channels: Channels, max_pixels: int) -> Pixels | None:
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
    for _ in range(MAX_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker, size = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        body = data[at + 4 : at + 2 + size]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xDA:  # the scan begins: the header is complete, and all channels are in this one scan
            return frame if frame is not None and body[:1] == bytes(frame[2:]) else None
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
