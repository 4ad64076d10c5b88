"""Decodes image files to uint8 pixels: upright, opaque, 8 bits, grey or RGB.

Pillow decodes PNG, JPEG, WebP, BMP, TIFF, GIF and PPM; simplejpeg, if installed, decodes plain JPEGs faster, with the
same pixels. Transparency is blended with white, 16 bits are scaled to 8, CMYK becomes RGB, EXIF rotation is applied,
and the first frame of an animation is used.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.data.decode_limits import FORMATS, MAX_PIXELS
from vitrail.data.decode_pixels import Channels, decode_pixels, decode_values, inspect

__all__ = ["MAX_PIXELS", "SUFFIXES", "decode", "decode_values", "inspect"]

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".gif"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)


def decode(
    data: bytes,
    *,
    channels: Channels = None,
    name: str = "the image",
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] = FORMATS,
) -> Tensor:
    """An image file as uint8 C H W; without `channels`, C is 1 for a grey image and 3 for any other."""
    pixels = torch.from_numpy(decode_pixels(data, channels=channels, name=name, max_pixels=max_pixels, formats=formats))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()  # H W [3] -> C H W
