"""Images of an explanation: the picture at display size, the saliency as a transparent overlay, both blended."""

import base64
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from vitrail.data.preprocess import Preprocess

MIN_SIDE, MAX_SIDE = 224, 1024  # pixels of a picture as it is shown: the shorter side, the longer side
_OPACITY = 0.75  # of the strongest pixel when blended
# Plasma: from dark violet to yellow in even steps of lightness, readable without telling red from green.
_COLOURS = torch.tensor(
    [[13, 8, 135], [92, 1, 166], [156, 23, 158], [203, 70, 121], [237, 121, 83], [253, 180, 47], [240, 249, 33]]
).float()


def display_crop(image: Tensor, preprocess: "Preprocess") -> Tensor:
    """Uint8 1 C H W of any size -> the part of it that the model gets, uint8 c h w, at the resolution of the image.

    The shorter side is at least MIN_SIDE and the longer side at most MAX_SIDE pixels.
    """
    height, width = preprocess.image_size
    scale = min(image.shape[2] / height, image.shape[3] / width) * min(preprocess.crop, 1.0)
    scale = min(max(scale, MIN_SIDE / min(height, width)), MAX_SIDE / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    shown, _ = replace(preprocess, image_size=size).fit(image)
    return shown[0]


def display_whole(image: Tensor) -> Tensor:
    """Uint8 1 C H W of any size -> all of it, uint8 C h w, small ones enlarged, none above MAX_SIDE."""
    height, width = image.shape[2:]
    scale = min(max(1.0, MIN_SIDE / min(height, width)), MAX_SIDE / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(image, size=size, mode="bilinear", antialias=True)[0]


def overlay(saliency: Tensor, size: tuple[int, int]) -> Tensor:
    """Float H W -> uint8 4 h w: colours, and opacity from 0 (the weakest pixel) to 255 (the strongest)."""
    resized = F.interpolate(saliency[None, None].float(), size=size, mode="bilinear", align_corners=False)[0, 0]
    strength = resized - resized.min()
    strength = strength / strength.max().clamp(min=1e-12)
    position = strength * (len(_COLOURS) - 1)
    low = position.long().clamp(max=len(_COLOURS) - 2)
    share = (position - low)[..., None]
    colours = _COLOURS[low] * (1 - share) + _COLOURS[low + 1] * share  # h w 3
    layers = torch.cat([colours, 255 * strength[..., None]], dim=2)  # h w 4
    return layers.round().to(torch.uint8).permute(2, 0, 1)


def blend(image: Tensor, layer: Tensor) -> Tensor:
    """Uint8 C h w under an overlay 4 h w -> uint8 3 h w."""
    opacity = _OPACITY * layer[3:].float() / 255
    mixed = image.float() * (1 - opacity) + layer[:3].float() * opacity
    return mixed.round().to(torch.uint8)


def contrast(saliency: Tensor) -> float:
    """The range of the map over its largest value: 0 is an even map, 1 one that reaches zero."""
    high, low = float(saliency.abs().max()), float(saliency.max() - saliency.min())
    return min(1.0, low / high) if high > 0 else 0.0


def png(image: Tensor) -> bytes:
    """Uint8 C H W with 1, 3 or 4 channels -> PNG."""
    pixels = image.expand(3, -1, -1) if image.shape[0] == 1 else image
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def data_url(image: bytes) -> str:
    """A PNG as a data: URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
