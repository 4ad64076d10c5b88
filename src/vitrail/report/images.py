"""Images inside a report: PNG or JPEG as data URIs, and heat maps laid over them."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.report.sections import Gallery, Line, Shot

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]

TINY = 96  # pixels: images up to this size are stored as they are; the page enlarges them
_LARGEST = 192  # pixels of the longer side of a stored photo
_GLOW = ((0, 0, 0), (48, 18, 96), (148, 38, 106), (226, 92, 48), (252, 178, 52), (255, 250, 206))  # dark to bright


def data_uri(image: "Tensor | Array", *, largest: int = _LARGEST) -> str:
    """An image, uint8 C H W with 1, 3 or 4 channels, as a data URI: PNG where it is tiny or transparent, else JPEG.

    `largest` is the longer side, in pixels, that a photo is stored with.
    """
    pixels = np.ascontiguousarray(np.asarray(image).transpose(1, 2, 0))  # H W C
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stored = BytesIO()
    if max(picture.size) <= TINY or pixels.shape[2] == 4:
        kind = "png"
        picture.save(stored, "PNG", optimize=True)
    else:
        kind = "jpeg"
        picture.thumbnail((largest, largest), Image.Resampling.LANCZOS)
        picture.save(stored, "JPEG", quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(stored.getvalue()).decode()}"


def overlay(image: "Tensor | Array", heat: "Tensor | Array") -> Array:
    """The image in grey with the heat map h w as a glow over it, uint8 3 H W; the map is stretched to its own range."""
    pixels = np.asarray(image, dtype=np.float32).mean(axis=0) / 255  # H W
    scale = max(1, -(-_LARGEST // max(pixels.shape)))
    grey = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
    values = np.asarray(heat, dtype=np.float32)
    share = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    size = (grey.shape[1], grey.shape[0])
    share = np.asarray(Image.fromarray(share).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)  # H W
    ramp = np.array(_GLOW, dtype=np.float32) / 255
    position = share * (len(_GLOW) - 1)
    step = position.astype(int).clip(max=len(_GLOW) - 2)
    part = (position - step)[..., None]
    glow = (ramp[step] * (1 - part) + ramp[step + 1] * part).transpose(2, 0, 1)  # 3 H W
    strength = 0.35 + 0.35 * share
    mixed: Array = ((grey * (1 - strength) + glow * strength) * 255).round().astype(np.uint8)
    return mixed


def heat_gallery(
    title: str,
    text: str,
    images: "Sequence[Tensor | Array]",
    maps: "Sequence[Tensor | Array]",
    captions: Sequence[Sequence[Line]],
    *,
    alt: str = "",
) -> Gallery:
    """Each image, uint8 C H W, beside the same image under its heat map h w, with its caption."""
    shots = tuple(
        Shot((data_uri(image), data_uri(overlay(image, heat))), tuple(lines), alt)
        for image, heat, lines in zip(images, maps, captions, strict=True)
    )
    return Gallery(title, text, shots)
