"""What an explanation looks like: pictures as PNG, and saliency as a layer of colour over them."""

import base64
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# From dark violet to yellow: evenly spaced steps in lightness, readable without telling red from green.
_COLOURS = torch.tensor(
    [[13, 8, 135], [92, 1, 166], [156, 23, 158], [203, 70, 121], [237, 121, 83], [253, 180, 47], [240, 249, 33]]
).float()


def picture_png(image: Tensor) -> bytes:
    """Uint8 C H W -> PNG."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()  # H W 3
    return _png(pixels)


def overlay_png(saliency: Tensor) -> bytes:
    """Float H W -> PNG with transparency: the strongest place opaque, the weakest clear."""
    strength = saliency.float() - saliency.min()
    strength = strength / strength.max().clamp(min=1e-12)
    place = strength * (len(_COLOURS) - 1)
    low = place.long().clamp(max=len(_COLOURS) - 2)
    share = (place - low)[..., None]
    colours = _COLOURS[low] * (1 - share) + _COLOURS[low + 1] * share  # H W 3
    layers = torch.cat([colours, 255 * strength[..., None]], dim=2)  # H W 4
    return _png(layers.round().to(torch.uint8).numpy())


def contrast(saliency: Tensor) -> float:
    """How much of the strongest place's weight the weakest lacks: 0 is an even map, 1 one with places of no weight."""
    high, low = float(saliency.abs().max()), float(saliency.max() - saliency.min())
    return min(1.0, low / high) if high > 0 else 0.0


def data_url(png: bytes) -> str:
    """A PNG inside a text."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _png(pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="PNG", optimize=False)
    return file.getvalue()
